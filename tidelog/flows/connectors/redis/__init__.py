"""Lists, pub/sub channels and streams on any Redis-protocol server.

    pubsub          the connector ``redis_pubsub``
    subscriptions   the subscriptions of a source ``redis_pubsub``, at one server or at all leaders of a cluster
    list            the connector ``redis_list``
    stream          the connector ``redis_stream``
    processinglist  the list of elements in flight of a ``redis_list``
    base            the base of these connectors
"""
