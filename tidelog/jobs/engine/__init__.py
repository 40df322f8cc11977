"""An engine: what decides which jobs run here, and runs them.

    engine      a supervisor with a Spark session
    supervisor  begins and ends what should run here
    membership  the engines that take part, and which of them should run a job
    ownership   what this engine has claimed
    execution   one job, from its claim to its end
    runner      what a running job is, whatever its kind
    factory     what runs a job on this engine's Spark
    session     the settings, and the Spark session
    daemon      what Spark's Python workers are forked from
    cleanup     removes states and snapshots of generations that are over
    connection  operations on the server, for the supervisor
"""
