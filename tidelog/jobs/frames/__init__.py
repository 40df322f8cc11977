"""Frame jobs: a function of DataFrames, run as one streaming query of Spark.

    query       ``FrameRunner``: starts, polls and stops the query
    options     the options of a frame job, its starting position, and its checkpoint
    input       the input topics as DataFrames
    output      checks the function's result and combines it into the rows of one query
    retention   the consumer group that protects unread input from eviction
    errors      converts the error that ended a query
"""
