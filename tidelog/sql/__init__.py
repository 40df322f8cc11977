"""SQL over streams and topics, with DuckDB.

    query    ``SqlSession``: a query in which streams and topics are tables
    tables   a stream or a topic as a dataset that DuckDB scans
    pruning  the part of a stream that the filters of a query need
    names    the tables that a query names

It needs the extra ``sql``.
"""
