"""The driver of a batch job: runs and publishes epochs.

    driver      plans, runs and publishes each epoch, and handles refusals
    outcome     the result of an epoch
    precheck    the queries before an epoch and before its publication
    sparktasks  the tasks of an epoch as a Spark job
    placement   the executors on which tasks run, or should run
"""
