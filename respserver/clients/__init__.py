"""Clients: how they come in, what is read from and written to them, when they have to leave.

    admission   which clients may come in, and which have to leave
    clients     who is connected
    connection  one client's connection: bytes in, replies out, flow control both ways
    listen      where it listens: TCP, TLS, a unix socket
    monitor     the lines of MONITOR
    pubsub      who listens to which channel
    tls         the TLS context
"""
