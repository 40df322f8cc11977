"""Jobs: functions over topics, run by Spark, exactly once.

    declare     ``@job``: a function, the topics that it reads and writes, and how it is run
    batch       what a batch job's function gets
    state       what it remembers, as the function sees it
    store       what it remembers, on disk and in memory
    snapshots   it in an object store; what may be evicted because of that
    keys        the names of what a job has on the server
    marker      the entries of the replay log: which epoch read what
    plan        what the driver tells a task, and what the task answers
    shape       what a job's topics are on the server
    origin      where a generation of a job began
    progress    the last marker of each partition
    positions   where each partition is in each input
    survey      what is asked before each epoch
    outcome     what a driver is told, and what it tells
    driver      runs a batch job, epoch by epoch
    saving      when snapshots are due
    sparkrun    the tasks of an epoch as a Spark job
    places      which executor a task runs on, or should
    waker       which jobs have news
    errors      what can go wrong, by whose fault
    loading     ``module:attribute`` becomes a Job
    task        what a Spark task does: one epoch of one partition
    reading     entries of an input to rows of Arrow
    fieldtypes  the Arrow types of a topic's fields
    statedir    where states are on a machine
    rows        what was read of one input, and the calls that a function gets it in
    calling     the calls of a batch job's function
    returned    what a function may return, and whether it fits the topic
    outputs     rows of outputs, dead letters and the marker as staged entries
    recovery    the state of a partition, brought to the version that was published last
    frames      ``FrameRunner``: a frame job as one streaming query
    frameoptions  its options, where it begins, where its checkpoint is
    frameinput  its input topics as DataFrames
    frameoutput  what its function returns, checked, and as the rows of one query
    framegroups  what it holds back from eviction
    frameerrors  what ended its query

and what runs them, on an engine:

    registry    which jobs there are: a stream of changes
    targets     the jobs of a module, and what the registry is told about one
    members     the engines that take part, and which of them should run a job
    ownership   what this engine has claimed
    supervisor  begins and ends what should run here
    running     one job, from its claim to its end
    runner      what a running job is, whatever its kind
    making      what runs a job on this engine's Spark
    engine      a supervisor with a Spark session
    session     the session
    daemon      what Spark's Python workers are forked from
    look        what is known of jobs, for people
    status      what an engine says about its jobs
    line        operations on the server, for the supervisor

and for tests:

    testing     ``JobTest``: a function on tables in memory, with state
    testengine  ``running_engine``: a whole engine beside a test
"""

from tidelog.jobs.batch import Batch
from tidelog.jobs.declare import Job, job
from tidelog.jobs.errors import JobError
from tidelog.jobs.state import State

__all__ = ["Batch", "Job", "JobError", "State", "job"]
