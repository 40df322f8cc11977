"""The node store, the cache of opened nodes, and the node limits, which all streams of a keyspace share."""

from __future__ import annotations

from typing import Final, Protocol

from resp.errors import AbsentNodeError
from storage.model.tombstones import Tombstones
from storage.nodes.cache import NodeCache
from storage.nodes.draft import Draft
from storage.nodes.packed import AnyNode, open_stored
from storage.nodes.reference import is_reference


class NodeStore(Protocol):
    """The store of sealed nodes that are not in memory. The persistence layer implements it."""

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the node's blob. Raises CorruptError if the store does not have it, AbsentNodeError if only the object
        store does."""

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return a node's blob, or the reference that the store has. Raises CorruptError if it has neither."""

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the reference that the store has instead of a node; b"" if it has the blob, which is not read, or
        neither."""

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the blob of the node with a reference that is not stored yet. Raises as load() does."""

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
    if blob is None:
        blob = store.load(sid, first_ord, first_id)
    elif is_reference(blob):
        blob = store.resolve(blob, sid, first_ord, first_id)
    return open_stored(blob, sid, first_ord, first_id, count, tombstones)


MOST_DRAFTED: Final = 32 << 20  # bytes: an eighth of a second of appends of 1 KB at the highest rate
DRAFTED_SHARE: Final = 16  # drafts take at most this part of ``maxmemory``


def most_drafted(maxmemory: int) -> int:
    """Return how many bytes drafts may take. ``maxmemory``: bytes; 0: no limit."""
    return min(MOST_DRAFTED, maxmemory // DRAFTED_SHARE) if maxmemory else MOST_DRAFTED


class DraftOwner(Protocol):
    """The stream that contains a draft."""

    def draft_sealed(self, first: int, draft: Draft, blob: bytes) -> None:
        """Replace the draft, which begins at ordinal ``first``, with its blob."""


class NodePool:
    """Store, cache, and limits. The limits may be changed at any time."""

    __slots__ = (
        "absent", "adopted", "ahead", "bytes", "cache", "damaged", "drafted", "drafts", "dropped", "idmp_most",
        "idmp_ms", "max_bytes", "max_entries", "most_drafted", "publish_written", "store", "tiered", "unstored",
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
        # the node that a snapshot has met which is only in the object store; for whoever reads the snapshot
        self.absent: AbsentNodeError | None = None
        self.tiered = False  # the store has nodes that are only in the object store
        self.adopted = False  # the log has got references to such nodes since the start
        self.ahead = 0  # memory of delayed entries that were read before their turn
        # the drafts that streams hold, in the order of their creation, with the stream and the first ordinal
        self.drafts: dict[Draft, tuple[DraftOwner, int]] = {}
        self.drafted = 0  # bytes of memory of these drafts
        self.most_drafted = 0  # ``drafted`` from which on a full node is compressed at once

    # -- drafts: compressed in another thread, then replaced -------------------------------------------------
    def add_draft(self, draft: Draft, owner: DraftOwner, first: int) -> None:
        self.drafts[draft] = owner, first
        self.drafted += draft.size

    def drop_draft(self, draft: Draft) -> None:
        """Forget a draft that its stream does not hold any more."""
        if self.drafts.pop(draft, None) is not None:
            self.drafted -= draft.size

    def drop_drafts(self) -> None:
        self.drafts.clear()
        self.drafted = 0

    def oldest_drafts(self, size: int) -> list[Draft]:
        """Return the oldest drafts of at most ``size`` bytes together, but at least one if there is one."""
        found: list[Draft] = []
        for draft in self.drafts:
            size -= draft.size
            if found and size < 0:
                break
            found.append(draft)
        return found

    def replace_drafts(self, drafts: list[Draft]) -> None:
        """Replace sealed drafts with their blobs in the streams that still hold them."""
        for draft in drafts:
            held = self.drafts.get(draft)
            if held is not None and draft.blob is not None:
                owner, first = held
                owner.draft_sealed(first, draft, draft.blob)

    def take_absent(self) -> AbsentNodeError | None:
        """Return ``absent``, and forget it."""
        absent, self.absent = self.absent, None
        return absent
