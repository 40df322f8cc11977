"""The replication link between a leader and a replica: both ends, and the protocol.

    backupfeed  the leader's end of the link to a continuous backup
    connecting  connects to another server
    feed       the leader's end: a full copy, then the log from memory or journal, then live
    follower   the replica's end: connect, take a copy or the missing part of the log, apply batches, reconnect
    formats    the versions that can read a log or a store
    frames     frames, which a leader sends after it has answered PSYNC; bytes only
    handshake  the requests with which a replica introduces itself, and the answers; bytes only
    members    the servers that follow one leader, as they tell each other; bytes only
    nodes      requests for nodes that are damaged in another server's store; bytes only
    wholecopy  a full copy for a backup, with nodes instead of references to history objects
    link       one connection of a replica to its leader: the handshake, then frames
"""
