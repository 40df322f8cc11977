"""Streams and topics as Arrow columns, for notebooks, SQL, Spark, and jobs.

    rows       ``to_arrow``: the rows of a stream or topic, in batches
    inference  the columns of a stream or topic, if a caller does not name them
    reading    reads one range of one stream, and continues after a lost connection
    direct     reads entries from history objects
    columns    converts pages to batches of one schema
    values     converts columns of bytes to typed columns, and finds invalid values
    names      converts names of fields, which are any bytes, to text and back
    pages      converts entries in RESP to columns of bytes, in C or with hiredis
    _rows      the C implementation: _words.h RESP to words, _rows.c words to columns, _arrow.h columns in Arrow's
               layout, _hash.h keys to partitions

It needs pyarrow (extra ``arrow``).
"""
