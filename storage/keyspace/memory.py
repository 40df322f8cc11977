"""The estimated memory of a keyspace."""

from __future__ import annotations

from typing import Final

from storage.keyspace.keyspace import Keyspace

KEY_BYTES: Final = 200  # memory of a key: table slot, index entry, and objects without their content
DEADLINE_BYTES: Final = 300  # memory of a key's expiry and its timer


def stream_bytes(ks: Keyspace) -> int:
    """Return the estimated memory of streams and groups. O(groups that changed since the last call)."""
    recount(ks, len(ks.uncounted))
    return ks.pool.bytes + ks.stream_keys + ks.group_bytes


def recount(ks: Keyspace, limit: int) -> bool:
    """Update the memory of at most ``limit`` changed groups. Return True if no others remain."""
    changed = ks.uncounted
    for _ in range(min(limit, len(changed))):
        group, _ = changed.popitem()
        size = group.memory_bytes()
        ks.group_bytes += size - group.counted
        group.counted, group.recount = size, False
    return not changed


def memory_bytes(ks: Keyspace) -> int:
    """Return the estimated memory of the whole content, without the node cache. See stream_bytes()."""
    return (
        stream_bytes(ks) + ks.string_bytes + ks.stages.bytes + ks.stages.fence_bytes
        + KEY_BYTES * len(ks.keys) + DEADLINE_BYTES * len(ks.expires) + ks.expiring_names
    )  # fmt: skip
