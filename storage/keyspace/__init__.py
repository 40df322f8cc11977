"""All keys, and the mutators that change them. Each mutator changes the state and logs the record of its effect.

    keyspace       all keys, and the mutators of strings and of any key
    streamkeys     the mutators of streams
    keylog         the state of a keyspace, the log of its changes, and its timers
    groupmutators  the mutators of groups: deliver, acknowledge, set due times, drop, claim
    delaymutators  the mutators of delayed entries: delay, join, cancel
    stagemutators  the mutators of stages: stage, publish, drop
    copymutators   the mutators of keys that are copied from another group of a cluster
    copying        the copy of a key for another group
    moving         selects the records of keys that move to another group
    exporting      copies and records of keys that move, as one sequence
    linking        references of copies to history objects that the other group has
    importing      applies what another group sends of keys that move to this group
    manykeys       changes and reads of many keys at once
    stringgroups   GETs, SETs, INCRs, and DECRs of different keys at once
    keytable       the keys and their lookup
    keyindex       all keys in an array, for SCAN and random keys
    values         the values of keys: streams and strings
    changes        the changes since the last checkpoint
    events         keyspace events and changed keys, for clients that are notified
    expiry         expiry of keys, groups, stages and producers
    deadletters    removal of messages that expired or reached the delivery limit, and their dead letters
    recordheads    cached heads of the most frequent records
    delivering     moves delayed entries that are due to their streams
    replay         applies records
    replaygroups   applies the records of groups
    replaycopies   applies the records of keys that are copied from another group
    replayparts    the parts of records, and checks of them
    retaining      evicts what the retention policies of streams do not retain
    validation     validation of records from another server
    prefetch       loads the objects that commands of many keys will touch into the processor's caches
    digest         the digest of a keyspace's content
    memory         the estimated memory of a keyspace

``_prefetch`` and ``_strings`` are written in C.
"""
