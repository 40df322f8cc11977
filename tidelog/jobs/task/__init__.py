"""What a Spark task does: one epoch of one partition.

    plan        what the driver tells a task, and what the task answers
    task        the order of it all
    reading     entries of an input to rows of Arrow
    fieldtypes  the Arrow types of a topic's fields
    rows        what was read of one input, and the calls that a function gets it in
    calls       the calls of the function
    results     what a function may return, and whether it fits the topic
    outputs     rows of outputs, dead letters and the marker as staged entries
    recovery    the state of a partition, brought to the version that was published last
"""
