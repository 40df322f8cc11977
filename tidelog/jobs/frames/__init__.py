"""Frame jobs: a function of DataFrames as one streaming query of Spark's.

    query       ``FrameRunner``: begins the query, looks at it, ends it
    options     its options, where it begins, where its checkpoint is
    input       its input topics as DataFrames
    output      what its function returns, checked, and as the rows of one query
    retention   what it holds back from eviction
    errors      what ended its query
"""
