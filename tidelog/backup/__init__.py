"""Backups of a running server: ``tidelog backup``, ``backups``, ``verify``, and ``restore``.

    targets   targets of backups: a directory or an fsspec URL
    frames    the frames that a server sends to a replica, and their checksums; bytes only
    source    reads a full copy and the following log from a server
    chunks    divides the copy into files
    manifest  the file that defines a backup
    lock      permits one writer per target
    take      creates a backup
    objectpins  protects history objects to which a backup refers
    retention  removes old backups
    logchunks  the files of the log of a continuous backup
    logwriter  collects the log of a server, and writes it as such files
    logmerge  merges these files, so that their number remains small
    overlaps  which of them to use during a merge
    logstate  the file that says where a log ends
    continuous  the process that follows a server
    supervised  runs it, and ends it if it hangs
    lagmonitor  how far it is behind the server
    recurring  takes further base backups while the process follows the server
    merging   merges files while the process follows the server
    resume    where that process continues after a restart
    ranges    the ranges that can be restored from a target
    overview  what a target contains, and how old it is
    until     finds the point to restore
    chunkreads  reads and verifies files
    datadirectory  lets tidelog-server verify a data directory
    restore   verifies a backup, and creates a data directory from it

A target holds any number of backups, which share their files::

    TARGET/
      20261121T080000.123Z-4711.json   a manifest: a backup is complete if and only if this file exists
      chunks/ab/abcdef01...            a few MB of one or more backups; the name is the SHA-256 of the content
      locks/...                        the current writer, see ``lock``
      logs/<log>/...                   the log after a backup, see ``logchunks``

Rule 1: a chunk is written once and never changed. The manifest is written last, after all chunks were read back.
Rule 2: data is used only after its SHA-256 was compared.
Rule 3: the modules of the server are not imported. A copy is read with the replication protocol, and a directory is
        created by the ``tidelog-server`` of the same installation.
"""
