"""The link between a leader and a replica: both ends, and what goes over it.

    feed       the leader's end: a full copy, then the log from memory or journal, then live
    follower   the replica's end: connect, take a copy or what is lacking, apply what comes, connect again
    formats    which versions can read what is sent
    frames     what a leader sends after it has answered PSYNC, drawn; bytes only
    handshake  how a replica introduces itself, and what it is answered; bytes only
    link       one connection of a replica to its leader: the handshake, then frames
"""
