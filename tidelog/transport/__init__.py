"""Connections to tidelog servers: addresses, TLS, leader lookup, replies and errors.

In reading order:

    address          parses URLs of servers
    access           ``Access``: the addresses of servers and the settings for connections to them
    errors           error replies: their classes, which of them are temporary, and which concern the user
    call             ``Call``: a command that is ready to be sent, and how its reply is read
    backoff          the delays between attempts of everything that is retried
    cancellation     cancels tasks and waits for their end
    connection       one blocking connection: pipelined commands, long ranges in pages of bounded size
    asyncconnection  one connection for asyncio: requests of many tasks, replies in order
    routedconnection  the same in a cluster of several groups: a connection to each leader
    lookup           finding the leader
    rawcalls         sends calls over redis-py's connections
    pools            redis-py's connections, to one server or to the leader of several
    slots            clusters of several groups: the slots of keys, and the leader of each slot
    keyspecs         which arguments of a command are keys
    divided          the parts of a call for several members, and the reply of all parts
    routing          divides requests by member, and follows redirections
    clusterpools     one pool for each member of such a cluster
    groupleaders     the leaders of such a cluster, for a ``LeaderConnection``
    leader           ``LeaderConnection``: requests that are repeated while the leader does not answer
    waker            notifies many idle readers of new entries: one thread, a few connections
"""
