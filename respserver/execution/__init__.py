"""Runs commands: from arguments to a reply.

    absent        commands that wait for entries from the object store, and are then repeated
    blocking      clients that wait for streams, replicas or the disk, and the order in which they are served
    checks        whether a command may run
    dispatch      finds a command, has it checked, calls it, records its stats, queues the reply
    faults        the reply to a command that failed because of a bug, damaged data or a lack of memory
    redirects     with cluster-enabled: the slot of a call's keys, and the leader that must run it
    requests      decodes what clients send, and runs their commands or lets them wait
    slices        long commands, run in slices between the commands of other clients
    transactions  MULTI and EXEC: queued commands, and their replies as one
"""
