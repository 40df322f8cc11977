"""The gateway: streams over HTTP, for programs without a Redis client. docs/gateway.md.

It is one process (``tidelog gateway``) that serves HTTP and uses RESP toward the server. In reading order:

    errors       errors as responses (RFC 9457), and the status of each error reply of the server
    limits       the limits of all resources
    counts       counters for metrics
    media        media types of requests and responses
    entryjson    entries as JSON, and JSON as entries
    parameters   parameters of requests, each declared once
    users        users, each with connections that are authenticated as this user
    frames       entries as server-sent events
    tails        follows a stream for all its readers with one connection
    tokens       tokens with which pages read one stream
    requestkeys  the entries for which each Idempotency-Key was used
    site         what requests share; one request; the declaration of a route
    reading      GET and HEAD: pages of entries
    events       event streams of readers
    groups       readers of groups, acknowledgements
    delayed      entries that join a stream later
    retention    the retention policy of a stream
    localhistory  how much of a stream stays local if its server copies history to an object store
    appending    POST: appends, exactly once if requested
    schemas      JSON schemas of bodies
    routes       the table of all routes
    issuing      issues tokens
    openapi      the OpenAPI document
    metrics      /metrics for Prometheus
    security     who sends a request, and from where; errors become responses
    application  the HTTP server
    process      the process: listening, signals

Rule 1: The gateway has no rights of its own. Every request to the server uses a connection of its user.
"""

from typing import Final

DEFAULT_LISTEN: Final = "127.0.0.1:9897"  # the address of the gateway
