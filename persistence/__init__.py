"""Durability: the write-ahead log (a ring file), the journal, the store, recovery.

    backlog    the log as those see it who read it from an offset: replicas
    directory  the data directory: what is in it, whose it is, and that nobody else uses it
    history    whose history the log is: its replication ID, and those it had before
    incoming   a copy of a leader's store that arrives, and how it takes the place of what was there
    journal    every batch since the last checkpoint, and what replicas may still lack
    lmdbfile   LMDB environments opened with care; their errors as refusals that name file and remedy
    lmdbpages  a look at an LMDB file's pages before LMDB maps and believes them
    log        all of them together: append, checkpoint, recover
    pieces     the store on its way to a replica
    store      all history as of the last checkpoint: nodes, streams, groups, strings, stages, fences
    wal        the ring file in front of everything: a tick costs one write and one sync
"""
