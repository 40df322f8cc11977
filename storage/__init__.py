"""The stream engine: IDs, streams of macro nodes, groups, keys, records. No I/O, no clock: time is an argument.

    capture   what a checkpoint writes, as of one log offset
    changes   what changed since the last checkpoint, and how a capture takes it part by part
    ids       an ID is one int, ``ms << 64 | seq``; its forms as text
    keyindex  all keys in an array, for SCAN's pages and random keys
    keyspace  every key and the only way to change one: each mutator changes state and logs its record
    records   the bytes of every effect, drawn
    replay    records back into effects
    snapshot  a range as it was at one moment: what long replies come from
    stream    a stream: append, ranges both ways, eviction, what a checkpoint must write
    timers    what has to happen when, for deadlines
"""
