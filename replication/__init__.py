"""The link between a leader and a replica: both ends, and what goes over it.

    feed       the leader's end: a full copy, then the log from memory or journal, then live
    follow     the replica's end: find the leader, take what is lacking, apply what comes, begin again when the link
               is lost
    frames     what a leader sends once the link stands, drawn; bytes only
    handshake  how a replica introduces itself, and what it is answered; bytes only
"""
