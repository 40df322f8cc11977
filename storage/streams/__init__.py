"""Streams, and the stages whose entries will be published to them.

    stream       a stream: appends, evictions, deletions, and the changes that a checkpoint must write
    reads        finds and reads entries
    nodelist     the nodes of a stream, and appends to them
    metadata     the stored form of a stream's metadata
    position     the result of a search in a stream
    selection    individually selected entries, for replies that are read later
    snapshot     a range at one point in time, for replies that are read later
    rangecopy    a range as one node, for another server
    producers    the IDs under which producers append entries
    delayed      entries that join their stream when they are due
    duerows      the order in which delayed entries are due
    indexlog     which parts of the index of delayed entries a checkpoint writes
    storedindex  reads these parts
    readahead    delayed entries that were read before their turn
    retention    the retention policy of a stream
    tierafter    how much of a stream stays local if its history is copied to an object store
    stages       unpublished entries, and fences
    capture      the changes that a checkpoint writes

Mutators of streams and stages are in ``storage.keyspace``.
"""
