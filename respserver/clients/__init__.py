"""Clients: their connections, and services for connected clients.

    admission      accepts and refuses new clients; closes idle and stalled ones
    clients        the registry of connected clients
    clientsocket   reads and writes one socket, by ``sockets`` or by the transport
    connection     one client: its socket, requests, replies, waits, and its end
    flowcontrol    why commands wait, and limits for waiting commands and replies
    input          requests that have arrived and wait
    listeners      listening sockets: TCP, TLS and unix
    monitor        MONITOR
    notifications  keyspace events and invalidations, sent after commands
    output         replies that wait for the socket
    pauses         CLIENT PAUSE, and delaying writes for FAILOVER
    pubsub         subscriptions and messages
    sockets        plain sockets, read and written by _sockets.c instead of the event loop's transports
    state          the states of a connection, and the valid transitions
    tls            TLS contexts
    tlsclose       closes TLS connections
    tracking       CLIENT TRACKING: which client caches which keys, and the invalidations
    users          logins; changes of users, and their effect on connected clients
"""
