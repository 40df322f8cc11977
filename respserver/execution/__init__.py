"""From arguments to a reply.

    blocking  clients that wait for streams or replicas, and who is served next
    dispatch  chooses the command, calls it, accounts for the call, delivers the reply
    faults    the reply to a command that failed for a reason that is not its own
"""
