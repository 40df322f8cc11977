"""From arguments to a reply.

    blocking  clients that wait for streams, replicas or the disk, and the order in which they are served
    dispatch  finds a command, checks whether it may run, calls it, keeps its stats, queues the reply
    slices    long commands, done in slices with other clients' commands in between
    faults    the reply to a command that failed because of a bug or damaged data
"""
