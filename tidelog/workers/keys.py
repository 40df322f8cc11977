"""The keys on the server that workers agree by. docs/workers-internals.md says who writes them and how long they live.

Rule 1: names of apps, processors and workers have no ``|`` and no ``:``, so no two keys are the same.
"""

from __future__ import annotations


def epochs(app: str) -> str:
    """The counter of epochs, for leases and claims."""
    return f"app:{app}:epoch"


def lease(app: str, worker: str) -> str:
    """The lease of a worker."""
    return f"app:{app}:lease:{worker}"


def leader(app: str) -> str:
    """The claim of the leader."""
    return f"app:{app}:leader"


def members(app: str, processor: str) -> str:
    """The document of a processor's members."""
    return f"app:{app}:members:{processor}"


def owner(app: str, processor: str, partition: int) -> str:
    """The claim of a partition."""
    return f"app:{app}:owner:{processor}:{partition}"


def control(app: str) -> str:
    """The control stream."""
    return f"app:{app}:control"


def timer(app: str, name: str) -> str:
    """The last run of a timer or a cron that the leader runs."""
    return f"app:{app}:timer:{name}"


def tried(app: str, processor: str, partition: int, entry_id: str) -> str:
    """How often an event was begun before."""
    return f"app:{app}:tried:{processor}:{partition}:{entry_id}"


def seen(app: str, processor: str) -> str:
    """The beginning of the keys by which a processor finds duplicates; their values follow."""
    return f"app:{app}:seen:{processor}:" if processor else f"app:{app}:seen:"
