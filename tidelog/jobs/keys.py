"""The names of a job's keys on the server.

jobs:registry           stream: all jobs, as a sequence of changes
jobs:engines            string: the running engines, in JSON
jobs:engine:<engine>    the lease of an engine; epochs of leases and claims come from jobs:epoch
job:<name>:owner        the claim of the engine that runs the job
job:<name>:log:<p>      stream: the replay log of partition p, one marker for each epoch (``marker``)
job:<name>:origin:<g>   string: where generation g started, and the topics at that time, in JSON (``origin``)
job:<name>:recovery:<p> string: the progress of the recovery of partition p, in JSON; expires unless renewed
job:<name>:snapshots    string: the snapshots, in JSON
job:<name>:status       string: the last report of the job's engine, in JSON
job:<name>:events       stream: starts, errors and so on, the newest thousand
job:<name>:<generation> not a key but a fence: its epoch is the last published one
job:<name>:{job:<name>:<generation>}:log, ...:intents
                        streams: the commits over several groups of a cluster (``commits``)
job:<name>              the group of the job in its input topics, which protects entries from eviction
"""

from __future__ import annotations

from typing import Final

REGISTRY: Final = "jobs:registry"
ENGINES: Final = "jobs:engines"
EPOCHS: Final = "jobs:epoch"


def prefix(name: str) -> str:
    return f"job:{name}"


def lease(engine: str) -> str:
    return f"jobs:engine:{engine}"


def owner(name: str) -> str:
    return f"job:{name}:owner"


def log(name: str, partition: int) -> str:
    return f"job:{name}:log:{partition}"


def origin(name: str, generation: int) -> str:
    return f"job:{name}:origin:{generation}"


def recovery(name: str, partition: int) -> str:
    return f"job:{name}:recovery:{partition}"


def snapshots(name: str) -> str:
    return f"job:{name}:snapshots"


def status(name: str) -> str:
    return f"job:{name}:status"


def events(name: str) -> str:
    return f"job:{name}:events"


def fence(name: str, generation: int) -> str:
    return f"job:{name}:{generation}"


def group(name: str) -> str:
    return f"job:{name}"
