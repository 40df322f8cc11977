"""Clients: how they come in, what is read from and written to them, when they have to leave.

    admission   which clients may come in, and which have to leave
    clients     who is connected
    connection  one client's connection: bytes in, replies out, flow control both ways
    flow        how much may wait for a client
    listen      where the server listens: TCP, TLS, a unix socket
    monitor     MONITOR: who watches, and the line that it gets
    pauses      CLIENT PAUSE, and a FAILOVER's hold on what writes
    pubsub      who listens to which channel
    tls         the TLS context
"""
