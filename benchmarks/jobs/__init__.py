"""Compares jobs with Spark's own methods, in one run: ``python -m benchmarks.jobs``.

    loads    the topics, what is in them, and what must come out
    defined  the jobs that are measured
    idlejobs  two hundred jobs that have nothing to do
    engines  engines in processes of their own, and what replay logs say of epochs
    session  a Spark session as all of Spark's own ways get it
    keyed    Spark's own ways to count by key: processors with state, and its built-in aggregate
    peers    a process that runs one of Spark's own ways over a filled topic, and says how long its batches took
    rates    rows per second, compared with Spark
    scaling  rows a second by keys in the state, and in a batch
    state    gets and puts a second of a state, by how many keys are in it: a program of its own
    late     how long an entry takes to its output
    survival  a state that is recovered, an engine that is killed
    idle     what idle jobs cost
    shown    rows of the table, with ratios, floors and goals; the plot
"""
