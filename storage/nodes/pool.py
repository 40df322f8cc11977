"""The node store, the cache of opened nodes, and the node limits, which all streams of a keyspace share."""

from __future__ import annotations

from typing import Protocol

from storage.model.tombstones import Tombstones
from storage.nodes.cache import NodeCache
from storage.nodes.draft import Draft
from storage.nodes.packed import AnyNode, open_stored


class NodeStore(Protocol):
    """The store of sealed nodes that are not in memory. The persistence layer implements it."""

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the node's blob. Raises CorruptError if the store does not have it."""

    def pin(self) -> NodeStore:
        """Return a view of the current store, which does not change until its release()."""

    def is_current(self) -> bool:
        """Return whether this is the current store. Otherwise, nodes may have been compacted (``compaction``)."""

    def release(self) -> None: ...


def open_sealed(
    blob: bytes | Draft | None, store: NodeStore, sid: int, first_ord: int, first_id: int, count: int,
    tombstones: Tombstones | None,
) -> AnyNode:  # fmt: skip
    """Open a sealed node, see open_stored(). ``blob``: None if the node is in the store."""
    if isinstance(blob, Draft):
        return blob.unpack()
    blob = blob or store.load(sid, first_ord, first_id)
    return open_stored(blob, sid, first_ord, first_id, count, tombstones)


class NodePool:
    """Store, cache, and limits. The limits may be changed at any time."""

    __slots__ = (
        "ahead", "bytes", "cache", "damaged", "drafted", "dropped", "idmp_most", "idmp_ms", "max_bytes", "max_entries",
        "publish_written", "store", "unstored",
    )  # fmt: skip

    def __init__(self, store: NodeStore, cache: NodeCache) -> None:
        self.store = store
        self.bytes = 0  # estimated memory of the streams: the sum of their memory_bytes()
        self.unstored = 0  # the part of ``bytes`` that the next checkpoint releases
        self.dropped = 0  # total that was ever subtracted from ``unstored``
        self.cache = cache
        self.max_entries = 512  # maximum entries of a node; at least 1
        # maximum size of a node's wire form; the entry that exceeds it is the last of the node
        self.max_bytes = 64 * 1024
        # entries of a TPUBLISH that are appended like others (this takes some milliseconds)
        self.publish_written = 4096
        self.idmp_ms = 100_000  # how long and how many IDs of a producer are remembered (see ``producers``)
        self.idmp_most = 100
        # sid -> first ordinal of each node that is known to be damaged in the store, and why
        self.damaged: dict[int, dict[int, str]] = {}
        self.ahead = 0  # memory of delayed entries that were read before their turn
        self.drafted = 0  # size of the drafts that streams have adopted since the last capture began
