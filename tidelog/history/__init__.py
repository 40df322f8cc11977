"""Reads history objects from an object store, at no cost to the server (docs/history-format.md).

    reading   reads the entries of a piece from objects
    planning  which parts of a range of IDs are in objects, and which must come from the server
    sections  converts sections to entries as TRANGE sends them
    _section  the same in C
    location  TMANIFEST: the history of a stream as its server knows it
    manifest  the manifest of a stream, with its pages
    survey    everything below a prefix
    checking  verifies all of it
    changes   repairs it, and forgets parts of it
    index     the sections of an object
    choice    the option ``history``: auto, direct, or server
    files     a directory, or a bucket through fsspec
    deadline  the time limit of each call to the object store
    errors    HistoryError

It shares no code with the server, which writes the objects. ``tidelog.arrow.direct`` converts sections to columns.
"""
