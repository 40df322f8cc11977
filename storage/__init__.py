"""The stream engine: IDs, streams of macro nodes, groups, keys, records. No I/O, no clock: time is an argument.

A module imports only modules that come before it in this list (folders have lists of their own):

    ids         an ID is one int, ``ms << 64 | seq``; its forms as text
    entries     entries in wire form
    timers      a heap of deadlines that tolerates change; NEVER
    records     the bytes of every effect, drawn
    keyindex    all keys in an array, for SCAN's pages and random keys
    marks       which entries of a stream were deleted one by one
    nodes/      macro nodes: how some hundred entries are kept together, in memory and in the store
    capture     what a checkpoint writes, as of one log offset
    snapshot    a range as it was at one moment: the source of long replies
    place       where a search ended in a stream
    picks       entries in any order, picked to be read later: the source of long replies of messages
    streammeta  a stream's metadata as the store keeps it
    groups/     groups of readers, and their pending messages
    producers   the IDs under which producers add entries, remembered for a while
    streamnodes  a stream's nodes, and what appends to them
    streamreads  a stream's entries, found and read
    stream      a stream: what removes entries, and what a checkpoint must write
    values      what a key can hold: a stream or a string
    ahead       what appends to many streams will touch, fetched beforehand
    wires       batches that another server sent: whether they can be what a server logs
    stages/     entries that are kept aside and published together, once
    changes     what changed since the last checkpoint, and how a capture takes it part by part
    events      keyspace events, and changed keys, that clients are to be told
    digest      the digest of a keyspace's content
    keytable    the keys, and how commands look one up
    keyspace    every key and the only way to change one: each mutator changes state and logs its record
    memory      the memory that a keyspace takes, by estimate
    manykeys    changes and reads of many keys at once
    expiry      what ends by time
    replay      records back into effects

Three modules in folders come after ``keyspace``: ``groups.effects`` and ``stages.publish``, which have the rest of the
mutators, and ``groups.overdue``. ``_ids`` and ``_records`` are C: many IDs, and the records of groups, as bytes.
"""
