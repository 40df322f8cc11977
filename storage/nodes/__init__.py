"""Macro nodes: several hundred consecutive entries each, in memory and in the store.

    node           a node in memory: entries in wire form with arrays of offsets; sealed as a compressed blob
    appendlist     recent unread entries of a stream, in fewer objects than a node
    packed         a node that was read from its blob, unpacked only as far as reads require
    coded          a node whose columns are coded as rows of bits, which can be read without unpacking it
    coder          encodes and decodes these rows, with ``_coded`` or ``codedrows``
    codedrows      decodes rows of bits in Python
    index          the first ordinal and the first ID of each sealed node of a stream
    cache          the cache of opened nodes, with a memory limit
    pool           the node store, the cache, and the node limits that all streams share
    stagedentries  staged entries, which have no IDs yet
    redisform      converts entries to the form that X commands return
    draft          full nodes that are not encoded and compressed yet
    reference      what the store has instead of a node that is only in a history object
    compaction     removes the bytes of deleted entries from nodes

``_coded`` is written in C. It encodes, searches, and decodes rows of bits.
"""
