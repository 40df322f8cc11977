"""The driver's side of a batch job: epoch after epoch, published.

    driver        the steps: what is asked, run, published; what becomes of a refusal
    outcome       what a driver is told, and what it tells
    precheck      what is asked before each epoch
    sparktasks    the tasks of an epoch as a Spark job
    placement     which executor a task runs on, or should
"""
