"""What the driver tells a Spark task about one epoch of one partition, and what the task answers. Both are pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.client.entries import StreamId
from tidelog.client.publish import NO_REPLICA_ACKS, ReplicaAcks
from tidelog.jobs.replaylog.marker import Marker
from tidelog.transport.access import Access


@dataclass(frozen=True)
class TaskSettings:
    """What is the same for all tasks of a running job."""

    target: str  # ``module:attribute`` of the Job
    path: tuple[str, ...]  # what is put in front of sys.path to import it
    access: Access
    generation: int
    run: str  # of this engine's run of the job: a UUID
    partitions: int  # of the job
    state_dir: str  # on the executor's disk, as ``statedir`` takes it
    store: str = ""  # URL of the object store, as fsspec takes it; empty: no snapshots
    cache: int = 64 << 20  # bytes of memory that a state may take, roughly
    stage_ttl_ms: int = 600_000
    topics: Mapping[str, str] = field(default_factory=dict)  # the ID of each topic, as the driver knows it
    version: str = ""  # of the function, which a worker that has another one imports anew; empty: whatever is there
    copies: ReplicaAcks = NO_REPLICA_ACKS  # replicas that must have what is staged


@dataclass(frozen=True)
class TaskPlan:
    """One epoch of one partition."""

    where: TaskSettings
    partition: int
    epoch: int
    last: Marker | None  # of the epoch before, as published; None: this is the first
    starts: Mapping[str, StreamId]  # by topic: where to go on, the entries after these IDs
    snapshot: bool = False  # make one of the state as it is after ``last``
    now_ms: int = 0  # of a job without inputs: the time of this call; 0: the server's clock decides


@dataclass(frozen=True)
class TaskFailure:
    """Why a task could not do its part."""

    kind: str  # the name of a class in ``errors``, or "" for what may pass when it is tried again
    text: str


@dataclass(frozen=True)
class TaskResult:
    """What a task did. With a failure, nothing of the epoch may be published."""

    partition: int
    stages: tuple[str, ...] = ()  # to publish, in this order; the marker is in the last
    marker: Marker | None = None
    more: bool = False  # there was more to read than the limits allow
    dead: int = 0  # entries that went to the dead letters
    keys: int = 0  # in the state
    bytes: int = 0  # of the state on disk
    recovered: int = 0  # epochs that were replayed before
    seconds: Mapping[str, float] = field(default_factory=dict)  # read, call, state, stage
    failure: TaskFailure | None = None
