"""Lists, pub/sub channels and streams on any Redis-protocol server.

    pubsub          ``redis_pubsub`` and ``redis_list``
    stream          ``redis_stream``
    processinglist  the list of elements in flight of a ``redis_list``
    base            the base of these connectors
"""
