"""The plan that the driver sends to a Spark task for one epoch of one partition, and its result. Both are pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.client.entries import StreamId
from tidelog.client.publish import NO_REPLICA_ACKS, ReplicaAcks
from tidelog.jobs.replaylog.marker import Marker
from tidelog.transport.access import Access


@dataclass(frozen=True)
class TaskSettings:
    """The settings that all tasks of a running job share."""

    target: str  # ``module:attribute`` of the Job
    path: tuple[str, ...]  # directories to put at the front of sys.path
    access: Access
    generation: int
    run: str  # a UUID that identifies this engine's execution of the job
    partitions: int  # of the job
    state_dir: str  # on the executor's disk, in the syntax of ``statedir``
    store: str = ""  # URL of the object store, for fsspec; empty: no snapshots
    cache: int = 64 << 20  # approximate memory of a state, in bytes
    stage_ttl_ms: int = 600_000
    topics: Mapping[str, str] = field(default_factory=dict)  # the ID of each topic, from the driver
    version: str = ""  # of the function; a worker that has a different version imports it again; empty: any
    copies: ReplicaAcks = NO_REPLICA_ACKS  # replicas that must have received what is staged
    divided: bool = False  # whether several groups of a cluster have the topics and the keys of the job


@dataclass(frozen=True)
class TaskPlan:
    """One epoch of one partition."""

    where: TaskSettings
    partition: int
    epoch: int
    last: Marker | None  # of the previous epoch, as published; None: this is the first epoch
    starts: Mapping[str, StreamId]  # by topic: the ID after which to read
    snapshot: bool = False  # create a snapshot of the state after ``last``
    now_ms: int = 0  # of a job without inputs: the time of the call; 0: the server's time


@dataclass(frozen=True)
class TaskFailure:
    """Why a task failed."""

    kind: str  # the name of a class in ``errors``; "": may be temporary
    text: str


@dataclass(frozen=True)
class TaskResult:
    """The result of a task. If there is a failure, nothing of the epoch may be published."""

    partition: int
    stages: tuple[str, ...] = ()  # to publish in this order; the last one contains the marker
    marker: Marker | None = None
    more: bool = False  # there are more entries than the limits allow
    dead: int = 0  # entries sent to the dead-letter queue
    keys: int = 0  # in the state
    bytes: int = 0  # of the state on disk
    recovered: int = 0  # epochs replayed before this one
    seconds: Mapping[str, float] = field(default_factory=dict)  # read, call, state, stage
    failure: TaskFailure | None = None
    divided: Mapping[str, Sequence[str]] = field(default_factory=dict)  # instead of ``stages``: stages by hash tag
