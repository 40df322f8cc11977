"""Streams, dead letters and the WAL on a tidelog server.

    stream            the connector ``stream``: its options; the next five modules implement it
    groupsource       the source with a group: redelivery until an entry is settled
    streamsource      the source without a group, and what both have in common
    entrywaiter       waits for entries without polling
    streamwriter      the sink
    fieldcodec        entries as values, and values as entries
    wal               the connector ``wal``: makes any source durable
    deadletters       dead letters of flows
    deadlettersink    the sink ``dead_letters``
"""
