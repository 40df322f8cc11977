"""History objects: the published format of entries in an object store. Bytes only, no I/O.

    deletions    the list of files that wait for their deletion
    manifest     the list of a stream's valid objects, in versions that are never overwritten
    objectfile   an object: sections, their index, and a footer
    owner        the server or server group that writes below a prefix
    pins         objects that must not be deleted
    rewrites     requests to write lost objects again
    section      consecutive entries of one stream, compressed and checksummed
    signedjson   files of one line of JSON and its checksum
    varints      columns of unsigned numbers

docs/history-format.md specifies the format for other readers.
"""
