"""An engine: decides which jobs run in this process, and runs them.

    engine      an engine: a supervisor with a Spark session
    supervisor  starts and stops the jobs that belong to this engine
    membership  the running engines, and which of them should run a job
    ownership   the claims of this engine
    execution   one job, from its claim to its end
    runner      the interface of a running job, of either kind
    factory     creates runners on this engine's Spark
    session     the settings of an engine, and its Spark session
    daemon      the parent process of Spark's Python workers
    metrics     ``/metrics`` for Prometheus
    cleanup     removes the states and snapshots of former generations
    connection  a connection for the operations of the supervisor
"""
