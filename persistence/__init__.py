"""Durability: the write-ahead log (a ring file), the journal, the store, and recovery.

    log            combines the parts: append, checkpoint, recover
    wal            the ring file ``tail``: one write and one sync per tick
    journal        all batches since the last checkpoint, and those that replicas may still request
    journalthread  moves batches from the WAL to the journal
    largebatches   files next to the journal's LMDB with the records of large batches
    backlog        reads the log from an offset, for replicas that catch up
    store          the state as of the last checkpoint: nodes, streams and their state, strings, stages, fences
    restoration    restores a keyspace from the store at a start
    layout         the bytes of the store's entries
    checkpoint     the changes of a checkpoint, applied to the store as one transaction
    overflowpages  verifies the first pages of large values before LMDB frees them
    checksums      counts and checksums of the store's entries
    rewind         deletes the end of the log, so that another history can continue from there
    storecopy      a copy of the store in chunks, for a replica
    noderuns       runs of nodes with digests: the report of a replica's nodes to its leader
    ownnodes       the nodes of a replica's own store during a copy of its leader's
    fullcopy       receives a copy of a leader's store and installs it
    scrub          reads and verifies the whole store in the background
    noderepair     replaces a damaged node of the store by a copy
    tiering/       copies sealed nodes to an object store, and reads them back, in separate processes
    diskcache      nodes that were read back from the object store
    verification   verifies a data directory that no server uses
    history        the identity of the log: its replication ID and its previous IDs
    directory      the data directory: its contents, its ID, and the lock against other servers
    nodeid         the ID of a server
    recovery       the result of recovery
    lmdbfile       opens LMDB environments; LMDB's errors name the file and the remedy
    lmdbreads      reads entries of an LMDB file in use with plain reads, and verifies their pages
    lmdbpages      verifies the pages of an LMDB file before LMDB maps them
    fileidentity   detects that open files were removed or replaced
    fileio         reads and writes that continue until everything is done
    permissions    file modes: only the server's user can read the files

``_frame`` and ``_overflow`` are written in C.
"""
