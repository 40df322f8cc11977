"""What all streams of a keyspace share: where sealed nodes are kept, the cache of opened ones, the limits of a node."""

from __future__ import annotations

from typing import Protocol

from storage.nodes.cache import NodeCache


class NodeStore(Protocol):
    """Where sealed nodes are that have left memory; implemented by the persistence layer."""

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """The node's blob. Raises CorruptError if the store doesn't have it."""

    def pin(self) -> NodeStore:
        """A view of the store as it is now; it doesn't change until its release()."""

    def is_current(self) -> bool:
        """Whether it is the store as it is now. If not, nodes may have lost bytes since (see ``thinned``)."""

    def release(self) -> None: ...


class NodePool:
    """Store, cache and limits. The limits may be changed at any time."""

    __slots__ = (
        "bytes", "cache", "drafted", "dropped", "idmp_most", "idmp_ms", "max_bytes", "max_entries", "publish_written",
        "store", "unstored",
    )  # fmt: skip

    def __init__(self, store: NodeStore, cache: NodeCache) -> None:
        self.store = store
        self.bytes = 0  # of memory that the streams take, by estimate: the sum of their memory_bytes()
        self.unstored = 0  # bytes of it that leave memory with the next checkpoint
        self.dropped = 0  # bytes that have ever left ``unstored``
        self.cache = cache
        self.max_entries = 512  # of a node; at least 1
        self.max_bytes = 64 * 1024  # of a node's wire; the entry that exceeds it is the node's last
        self.publish_written = 4096  # entries of a TPUBLISH that are written at once, like others: some milliseconds
        self.idmp_ms = 100_000  # how long, and how many, IDs of a producer are remembered (see ``producers``)
        self.idmp_most = 100
        self.drafted = 0  # bytes of drafts that streams were given since the last capture began
