"""Backups of a running server: ``tidelog backup``, ``backups``, ``verify`` and ``restore``.

    places    where backups are: a folder, or what fsspec can write to
    frames    what a server sends to a replica, and its checksums; bytes only
    source    a full copy and the log after it, from a server
    chunks    where the copy is cut into files
    manifest  what a backup consists of: the file that makes it one
    lock      one writer a target
    take      makes a backup, and removes old ones
    restore   reads a backup: verifies it, makes a data directory of it

A target holds any number of backups, which share their files::

    TARGET/
      20261121T080000.123Z-4711.json   a manifest: a backup is complete if and only if this file is there
      chunks/ab/abcdef01...            up to some MB of one or more backups; the name is the SHA-256 of the content
      locks/...                        who is writing there now, see ``lock``

Rule 1: a chunk is written once and never changed. The manifest is written last, after everything was read back.
Rule 2: nothing that is read is used before its SHA-256 was compared.
Rule 3: the server's programs are not imported. A copy is taken as a replica takes it, and a directory is made by the
``tidelog-server`` that is installed beside this package.
"""
