"""Tiering: the server's side of the copies in an object store.

    tiering        decides when a pass is due, and counts what passes do
    historyreads   fetches entries that are only in the object store, and limits the disk cache
    helperprocess  starts, supervises, and kills the process that does the work (``persistence.tiering.helper``)
"""
