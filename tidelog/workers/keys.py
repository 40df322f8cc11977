"""The keys on the server that workers use. docs/workers-internals.md describes who writes them and when they expire.

Rule 1: names of apps, processors and workers contain neither ``|`` nor ``:``, so all keys are distinct.
"""

from __future__ import annotations


def epochs(app: str) -> str:
    """The epoch counter, for leases and claims."""
    return f"app:{app}:epoch"


def lease(app: str, worker: str) -> str:
    """The lease of a worker."""
    return f"app:{app}:lease:{worker}"


def leader(app: str) -> str:
    """The claim of the leader."""
    return f"app:{app}:leader"


def members(app: str, processor: str) -> str:
    """The member document of a processor."""
    return f"app:{app}:members:{processor}"


def owner(app: str, processor: str, partition: int) -> str:
    """The claim of a partition."""
    return f"app:{app}:owner:{processor}:{partition}"


def control(app: str) -> str:
    """The control stream."""
    return f"app:{app}:control"


def timer(app: str, name: str) -> str:
    """The last execution of a timer or a cron on the leader."""
    return f"app:{app}:timer:{name}"


def starts(app: str, processor: str, partition: int, entry_id: str) -> str:
    """The number of starts of an event."""
    return f"app:{app}:tried:{processor}:{partition}:{entry_id}"


def seen(app: str, processor: str) -> str:
    """The prefix of the keys by which ``deduplicate`` finds duplicates."""
    return f"app:{app}:seen:{processor}:" if processor else f"app:{app}:seen:"
