"""Durability: the write-ahead log (a ring file), the journal, the store, recovery.

    backlog     the log for readers that start at an offset: replicas that catch up
    checkpoint  what a checkpoint changes in the store, as one transaction
    content     how many entries the store says that it has, and their sums
    directory   the data directory: what is in it, its ID, and the lock that keeps other servers out
    history     the identity of the log: its replication ID and the IDs that it had before
    incoming    a full copy of a leader's store: written beside the old data as it arrives, then put in its place
    inplace     whether files that are open are still those at their paths
    journal     every batch since the last checkpoint, and what replicas may still ask for
    layout      the bytes of the store's entries
    lmdbfile    opening LMDB environments; their errors as refusals that name the file and the remedy
    lmdbpages   a check of the pages of an LMDB file before LMDB maps and believes them
    log         all of them together: append, checkpoint, recover
    pieces      a copy of the store for a replica, in pieces
    private     the modes of files: for the server's user alone
    recovered   what a start found in the data directory
    segments    files beside the journal's LMDB with the records of large batches
    store       all history as of the last checkpoint: nodes, streams and what they have, strings, stages, fences
    wal         the ring file in front of everything (``tail`` in the data directory): one write and one sync a tick;
                small frames are written by ``_frame``, which is C
"""
