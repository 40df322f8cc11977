"""The console: a web application that shows and operates one tidelog server, or one server group. docs/console.md.

It is one process (``tidelog console``) that serves HTML over HTTP and uses RESP toward the server. In reading order:

    errors       the errors that pages display
    clusterconnection  the connection to all groups of a cluster
    connection   the RESP connection of one logged-in user
    sessions     logged-in users: cookies, limits, expiry
    audit        the audit log: one line for each change
    security     which requests are served: hosts, origins, CSRF tokens; the headers of all responses
    assets       style sheets and scripts, with their hashes
    infotext     the text of INFO, and the lists of SLOWLOG and CLIENT LIST
    keynames     keys in URLs; finding keys in steps of bounded cost
    streams      entries of streams, positions in them, and their summaries
    search       searching a range of a stream, in steps
    compared     the differences of two entries
    groups       groups of a stream: lag, pending messages, resets
    deadletterqueues  finding dead-letter queues of all kinds
    programs     the rows of apps, jobs and flows
    apps         apps, as their workers declare them on the server
    jobs         jobs, as the registry and their engines describe them
    flows        flows, as their processes describe them on the server
    eventedits   the fields of an event as a form
    groupsets    groups of the same name on several streams, and their resets
    topics       settings and partitions of topics
    records      entries of topics as records
    merged       the records of several partitions, merged by time
    delayedentries  delayed entries of streams
    payloads     entries as text, JSON, hex, and code
    rendering    templates, and how they display numbers, sizes, times and bytes
    clusterstate  the groups and members of a cluster, and sums over the groups
    history      the samples of the plots: a bounded stream on the server
    recorder     appends the samples while a user is logged in who may do so
    live         server-sent events
    pages        one module for each page
    application  the routes
    process      the process: listening, signals

Rule 1: The console has no rights of its own. Every request to the server uses the connection of the logged-in user.
Rule 2: Everything from the server is text. Templates escape it; no page displays it as HTML.
Rule 3: Every change passes through ``audit``.
"""

from typing import Final

DEFAULT_LISTEN: Final = "127.0.0.1:9899"  # the address of the console
