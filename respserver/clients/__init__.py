"""Clients: their connections, and services for connected clients.

    admission      accepts and refuses new clients; closes idle and stalled ones
    clients        the registry of connected clients
    connection     one client's connection: bytes in, replies out, flow control both ways
    flowcontrol    limits for the commands and replies that wait
    listeners      listening sockets: TCP, TLS and unix
    monitor        MONITOR
    notifications  keyspace events and invalidations, sent after commands
    pauses         CLIENT PAUSE; holding writes back for FAILOVER
    pubsub         subscriptions and messages
    sockets        plain sockets, read and written by _sockets.c instead of the event loop's transports
    tls            TLS contexts
    tlsclose       closes TLS connections
    tracking       CLIENT TRACKING: which client caches which keys, and the invalidations
    users          logging in; changes of users, and their effect on connected clients
"""
