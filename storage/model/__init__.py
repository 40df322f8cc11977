"""The values that streams are made of, their encodings, and basic data structures.

    ids         IDs as integers (``ms << 64 | seq``) and as text
    entries     entries in wire form
    records     the encoding of each logged effect
    timers      a heap of deadlines that can be changed
    tombstones  the ordinals of deleted entries
    sortedrows  an ordered set of rows of bytes with a fixed width

``_ids`` and ``_records`` are written in C. They encode many IDs, and the records of groups.
"""
