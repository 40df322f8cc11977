"""HTTP and websockets.

    client           ``http_client``: one request for each event; its response becomes an event
    server           ``http_server``: requests as events, answered when they are settled
    websocket        ``websocket_client``, ``websocket_server``: messages in both directions
    requests         the base of sinks that send requests (``http_client``, ``elastic``)
    oauth2           access tokens of clients
    proxies          proxies of clients
    concurrency      the number of requests in flight, adapted to the peer
    options          authentication, TLS, and the meaning of status codes
    listening        the base of connectors that accept HTTP connections, and their options
    listener         one HTTP server for each address of the process
"""
