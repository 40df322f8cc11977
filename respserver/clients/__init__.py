"""Clients: their connections, and what concerns connected clients.

    admission   accepts and refuses new clients; closes idle and stalled ones
    clients     the registry of connected clients
    connection  one client's connection: bytes in, replies out, flow control both ways
    flow        limits for the commands and replies that wait
    goodbye     the end of a TLS connection that this server closes
    listen      listening sockets: TCP, TLS and unix
    monitor     MONITOR
    notices     what clients are told of changes: keyspace events, and through tracking
    pauses      CLIENT PAUSE; holding writes back for FAILOVER
    pubsub      subscriptions and messages
    sockets     plain sockets, read and written without the event loop's transports, by _sockets.c
    tls         TLS contexts
    tracking    CLIENT TRACKING: who caches which keys, and is told of changes
    users       logging in; changes of users, and what they mean for connected clients
"""
