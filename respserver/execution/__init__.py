"""From arguments to a reply.

    blocking  clients that wait for streams, replicas or the disk, and the order in which they are served
    dispatch  finds a command, has it checked, calls it, keeps its stats, queues the reply
    checks    whether a command may run
    alive     signs of life in calls that are refused
    transactions  MULTI and EXEC: queued commands, and their replies in one
    slices    long commands, done in slices with other clients' commands in between
    faults    the reply to a command that failed because of a bug, damaged data or a lack of memory
"""
