"""The work of a Spark task: one epoch of one partition.

    plan        the plan that the driver sends to a task, and the task's result
    task        the steps of a task, in order
    reading     reads the entries of an input into Arrow tables
    direct      reads the entries of an input from history objects
    fieldtypes  the Arrow types of a topic's fields
    rows        the rows of one input, and how they are divided into calls
    calls       calls the function
    results     checks the tables that the function returned
    outputs     stages output rows, dead letters and the marker
    recovery    brings the state of a partition to the last published version
"""
