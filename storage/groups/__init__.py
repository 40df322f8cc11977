"""The state of consumer groups. The mutators of groups are in ``storage.keyspace``.

    group          a group: offset, time to live, pending list, consumers, counters
    pending        the pending list: messages by ID, by due time, by owner, and by the time at which they must leave
    rangetable     the table below a pending list: messages, and ranges of messages with the same terms
    rangerow       the row of a range: its layout and access to its fields
    ranges         changes of many messages in one pass over the ranges
    ownerindex     the ranges that consumers own, by owner and by last delivery
    pendingformat  the serialized form of a pending list (TLP3, TLP2, and the older TLP1)

Rule: ``group`` and ``pending`` are for other packages; the other modules are used only here and by the store's format.
"""
