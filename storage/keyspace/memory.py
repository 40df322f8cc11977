"""The memory that a keyspace takes, by estimate."""

from __future__ import annotations

from typing import Final

from storage.keyspace.keyspace import Keyspace

KEY_BYTES: Final = 200  # memory of a key: its slots in the key table and the index, its objects without their content
DEADLINE_BYTES: Final = 300  # of a key's expiry and its timer


def stream_bytes(ks: Keyspace) -> int:
    """Bytes of memory that streams and groups take, by estimate. O(groups that changed since the last call)."""
    recount(ks, len(ks.uncounted))
    return ks.pool.bytes + ks.stream_keys + ks.group_bytes


def recount(ks: Keyspace, limit: int) -> bool:
    """Look at the memory of so many groups that changed since the last look; True if no others are left."""
    changed = ks.uncounted
    for _ in range(min(limit, len(changed))):
        group, _ = changed.popitem()
        size = group.memory_bytes()
        ks.group_bytes += size - group.counted
        group.counted, group.recount = size, False
    return not changed


def memory_bytes(ks: Keyspace) -> int:
    """Bytes of memory that the whole content takes, without the cache of nodes; see stream_bytes()."""
    return (
        stream_bytes(ks) + ks.string_bytes + ks.stages.bytes + ks.stages.fence_bytes
        + KEY_BYTES * len(ks.keys) + DEADLINE_BYTES * len(ks.expires) + ks.expiring_names
    )  # fmt: skip
