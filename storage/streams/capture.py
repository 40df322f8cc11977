"""What a checkpoint has to write: everything that changed since the last completed one, frozen at one log offset.

A Capture is made on the event loop, part by part (see ``changes``): references to what is immutable, copies of what is
not. The persistence layer writes it in another thread; the keyspace is told how that ended.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from storage.model.sortedrows import PackedRows
from storage.nodes.draft import Draft
from storage.nodes.stagedentries import StagedChunk


class StreamCapture:
    """What a checkpoint must write of one stream. There may be 100,000, so what most lack takes no memory."""

    __slots__ = (
        "active", "dead_nodes", "first_ord", "meta", "next_ord", "nodes", "producers", "sid", "sparse", "tombstones",
    )  # fmt: skip

    def __init__(
        self, sid: int, meta: bytes, first_ord: int, next_ord: int, nodes: Sequence[tuple[int, int, bytes | Draft]],
        active: tuple[int, int, bytes] | None,
    ) -> None:  # fmt: skip
        self.sid = sid
        self.meta = meta
        self.first_ord = first_ord  # stored nodes that end at or before it are to be deleted
        self.next_ord = next_ord  # where the last node ends
        # nodes made since the last completed checkpoint: first ordinal, first ID, and the blob or the draft, which is
        # sealed off the event loop
        self.nodes = nodes
        self.active = active  # the same for the tail; its blob is uncompressed
        # entries deleted one by one: chunks of marks (see ``marks``) that changed, empty ones have none any more
        self.tombstones: Sequence[tuple[int, bytes]] = ()
        # nodes that the store may have and that have no living entry any more: first ordinal, first ID
        self.dead_nodes: Sequence[tuple[int, int]] = ()
        # nodes of which at most half is alive, to be rewritten: first ordinal, first ID, the runs of living entries
        self.sparse: Sequence[tuple[int, int, list[tuple[int, int]]]] = ()
        # producers whose IDs changed (see ``producers``), each with its name and its dump; an empty one is forgotten
        self.producers: Sequence[tuple[bytes, bytes]] = ()

    @property
    def parts(self) -> tuple[object, ...]:
        """All of it, to be compared."""
        return (
            self.sid, self.meta, self.first_ord, self.next_ord, list(self.nodes), self.active, list(self.tombstones),
            list(self.dead_nodes), list(self.sparse), list(self.producers),
        )  # fmt: skip


@dataclass(slots=True)
class StageCapture:
    """What a checkpoint must write of one stage."""

    sid: int
    name: bytes
    ttl: int
    deadline: int
    count: int  # pieces in all
    pieces: list[tuple[int, StagedChunk, bytes, array[int]]]  # number, the piece, its entries as of now, their sizes


@dataclass(slots=True)
class Capture:
    """One checkpoint's content; every part is immutable or a copy."""

    flushed: bool = False  # FLUSHALL since the last checkpoint: the store drops everything before it takes the rest
    next_sid: int = 1  # of the next stream or stage; none is ever used twice
    away: int = 0  # ms: wall-clock time less served time
    streams: list[StreamCapture] = field(default_factory=list)
    stream_keys: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # sid -> key, expiry in ms (0: none)
    # sid, name, meta, pending list in parts, which pendingdump.assemble() joins off the event loop
    groups: list[tuple[int, bytes, bytes, list[bytes | PackedRows]]] = field(default_factory=list)
    dead_groups: list[tuple[int, bytes]] = field(default_factory=list)
    dead_streams: list[int] = field(default_factory=list)
    strings: list[tuple[bytes, bytes, int]] = field(default_factory=list)  # key, value, expiry in ms (0: none)
    dead_strings: list[bytes] = field(default_factory=list)
    stages: list[StageCapture] = field(default_factory=list)
    dead_stages: list[int] = field(default_factory=list)
    fences: list[tuple[bytes, int, bytes]] = field(default_factory=list)  # name, epoch, check (empty: none)
    changes: int = 0  # number of changes it covers (INFO rdb_changes_since_last_save)

    @property
    def empty(self) -> bool:
        return not (
            self.flushed or self.streams or self.groups or self.dead_groups or self.dead_streams or self.strings
            or self.dead_strings or self.stages or self.dead_stages or self.fences
        )
