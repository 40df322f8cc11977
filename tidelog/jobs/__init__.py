"""Jobs: functions over topics, run by Spark, exactly once.

For authors of jobs:

    declare     ``@job``: a function, its input and output topics, and its options
    batch       ``MicroBatch``: the argument of a batch job's function
    state       ``State``: the state of a job, as its function uses it
    errors      the errors of jobs
    testing     ``JobTest``: runs a function on tables in memory, with state
    testengine  ``running_engine``: starts a complete engine for a test

Shared by all parts:

    keys        the names of a job's keys on the server
    commits     the epochs of a job in a cluster of several groups
    topics      the settings of a job's topics on the server
    loading     imports the Job that ``module:attribute`` names
    code        the modules that a job's code consists of, and its version
    pools       Spark's scheduler pools: the order in which jobs get free cores

The parts, each of which imports only those below it:

    engine      assigns jobs to engines and runs them on the engine's Spark
    epochs      the driver of a batch job, epoch by epoch
    frames      runs a frame job as one streaming query
    task        the work of a Spark task: one epoch of one partition
    snapshots   copies of states in an object store, and the eviction that they permit
    registry    the registry of jobs, and their status
    replaylog   the replay log: the progress of a job
    store       the state of one partition on a machine's disk
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidelog.jobs.batch import MicroBatch
    from tidelog.jobs.declare import Job, job
    from tidelog.jobs.errors import JobError
    from tidelog.jobs.state import State
    from tidelog.topics.failureactions import DeadLetter, Halt

__all__ = ["DeadLetter", "Halt", "Job", "JobError", "MicroBatch", "State", "job"]

_HOMES: Final = {
    "DeadLetter": "tidelog.topics.failureactions", "Halt": "tidelog.topics.failureactions",
    "Job": "tidelog.jobs.declare", "JobError": "tidelog.jobs.errors", "MicroBatch": "tidelog.jobs.batch",
    "State": "tidelog.jobs.state", "job": "tidelog.jobs.declare",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the registry and the console do not need pyarrow, which ``batch`` imports."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
