"""Jobs: functions over topics, run by Spark, exactly once.

What authors of jobs import:

    declare     ``@job``: a function, the topics that it reads and writes, and how it is run
    batch       what a batch job's function gets
    state       what it remembers, as the function sees it
    errors      what can go wrong, by whose fault
    testing     ``JobTest``: a function on tables in memory, with state
    testengine  ``running_engine``: a whole engine beside a test

What all parts share:

    keys        the names of what a job has on the server
    topics      what a job's topics are on the server
    loading     ``module:attribute`` becomes a Job
    code        the modules that a job's code consists of, and its version
    pools       which of an engine's jobs gets the next free core

The parts, each of which imports only what stands below it:

    engine      which engine runs what, and the engine's Spark
    epochs      the driver of a batch job: epoch after epoch     frames   a frame job as one streaming query
    task        what a Spark task does: one epoch of one partition
    snapshots   states in an object store; what may be evicted because of that
    replaylog   how far a job is: the replay log                 registry    which jobs there are, what is known of them
    store       the state of a partition on a machine's disk
"""

from tidelog.jobs.batch import MicroBatch
from tidelog.jobs.declare import Job, job
from tidelog.jobs.errors import JobError
from tidelog.jobs.state import State

__all__ = ["Job", "JobError", "MicroBatch", "State", "job"]
