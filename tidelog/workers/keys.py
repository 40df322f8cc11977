"""The keys on the server that workers use. docs/workers-internals.md describes who writes them and when they expire.

Rule 1: names of apps, processors and workers contain neither ``|`` nor ``:``, so all keys are distinct.
"""

from __future__ import annotations


def epochs(app: str) -> str:
    """Return the key of the epoch counter, for leases and claims."""
    return f"app:{app}:epoch"


def lease(app: str, worker: str) -> str:
    """Return the key of a worker's lease."""
    return f"app:{app}:lease:{worker}"


def group_lease(app: str, worker: str, tag: str) -> str:
    """Return the key of a worker's lease for one group of a cluster, which has a slot of this hash tag."""
    return f"app:{app}:lease:{worker}:{tag}"


def leader(app: str) -> str:
    """Return the key of the leader's claim."""
    return f"app:{app}:leader"


def members(app: str, processor: str) -> str:
    """Return the key of a processor's member document."""
    return f"app:{app}:members:{processor}"


def owner(app: str, processor: str, partition: int, tag: str = "") -> str:
    """Return the key of a partition's claim. ``tag``: in a cluster, the hash tag of the partition's stream."""
    return f"app:{app}:owner:{processor}:{tag or partition}"


def control(app: str) -> str:
    """Return the key of the control stream."""
    return f"app:{app}:control"


def timer(app: str, name: str) -> str:
    """Return the key of the last execution of a timer or a cron on the leader."""
    return f"app:{app}:timer:{name}"


def declaration(app: str) -> str:
    """Return the key of the app's declaration, for tools that do not have its code."""
    return f"app:{app}:declaration"


def starts(app: str, processor: str, partition: int, entry_id: str, tag: str = "") -> str:
    """Return the key of the number of starts of an event. ``tag``: as for ``owner``."""
    return f"app:{app}:tried:{processor}:{tag or partition}:{entry_id}"


def seen(app: str, processor: str) -> str:
    """Return the prefix of the keys by which ``deduplicate`` finds duplicates."""
    return f"app:{app}:seen:{processor}:" if processor else f"app:{app}:seen:"
