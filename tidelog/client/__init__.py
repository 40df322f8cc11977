"""The clients, and what the Spark package and everything to come stand on.

    aio      ``AsyncClient``, for asyncio
    calls    each command defined once: what is sent, how the reply is read. The two clients take their methods from
             here
    client   ``Client``, over redis-py
    entries  IDs, entries, batches, descriptions: what the clients return
    publish  rows put aside on the server, and published all at once and once only
    servers  which server is asked, and what happens when it does not answer
    wire     one connection that takes a long range in pieces of bounded size
"""
