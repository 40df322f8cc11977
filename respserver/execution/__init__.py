"""From arguments to a reply: dispatch, ticks, clients that wait.

    api       what handlers may ask of the server, over the parts that do it
    blocking  clients that wait for streams or replicas, and who is served next
    dispatch  from arguments to a reply
"""
