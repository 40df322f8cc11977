"""Captures: everything that changed since the last completed checkpoint, frozen at one log offset.

A Capture is created on the event loop, in parts (see ``changes``). It refers to immutable objects and copies others.
The persistence layer writes it in another thread, and the keyspace is notified of the result.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from storage.model.sortedrows import PackedRows
from storage.nodes.draft import Draft
from storage.nodes.stagedentries import StagedChunk


class StreamCapture:
    """The changes of a stream. Since there may be 100,000 of them, rare changes take no memory."""

    __slots__ = (
        "active", "dead_nodes", "first_ord", "meta", "next_ord", "nodes", "producers", "sid", "sparse", "tombstones",
    )  # fmt: skip

    def __init__(
        self, sid: int, meta: bytes, first_ord: int, next_ord: int, nodes: Sequence[tuple[int, int, bytes | Draft]],
        active: tuple[int, int, bytes] | None,
    ) -> None:  # fmt: skip
        self.sid = sid
        self.meta = meta
        self.first_ord = first_ord  # stored nodes that end at or before this ordinal must be deleted
        self.next_ord = next_ord  # the end of the last node
        # nodes sealed since the last completed checkpoint: first ordinal, first ID, and the blob or draft (which is
        # sealed outside of the event loop)
        self.nodes = nodes
        self.active = active  # the active node in the same form; its blob is uncompressed
        # changed chunks of tombstones (see ``tombstones``); an empty chunk has no tombstones any more
        self.tombstones: Sequence[tuple[int, bytes]] = ()
        # nodes without living entries that may be in the store: first ordinal, first ID
        self.dead_nodes: Sequence[tuple[int, int]] = ()
        # nodes to be compacted, at least half deleted: first ordinal, first ID, the ranges of living entries
        self.sparse: Sequence[tuple[int, int, list[tuple[int, int]]]] = ()
        # changed producers (see ``producers``), with name and dump; an empty dump means removed
        self.producers: Sequence[tuple[bytes, bytes]] = ()


@dataclass(slots=True)
class StageCapture:
    """The changes of a stage."""

    sid: int
    name: bytes
    ttl: int
    deadline: int
    count: int  # total number of chunks
    pieces: list[tuple[int, StagedChunk, bytes, array[int]]]  # number, chunk, its current entries, their sizes


@dataclass(slots=True)
class Capture:
    """The content of a checkpoint. Every part is immutable or a copy."""

    flushed: bool = False  # FLUSHALL since the last checkpoint: everything is removed from the store first
    next_sid: int = 1  # the sid of the next stream or stage; never reused
    away: int = 0  # ms: wall-clock time minus served time
    imports: bytes = b""  # slots that are being copied to this group
    streams: list[StreamCapture] = field(default_factory=list)
    stream_keys: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # sid -> key, expiry in ms (0: none)
    # sid, name, meta, and the pending list in parts, which pendingformat.assemble() joins outside of the event loop
    groups: list[tuple[int, bytes, bytes, list[bytes | PackedRows]]] = field(default_factory=list)
    dead_groups: list[tuple[int, bytes]] = field(default_factory=list)
    dead_streams: list[int] = field(default_factory=list)
    strings: list[tuple[bytes, bytes, int]] = field(default_factory=list)  # key, value, expiry in ms (0: none)
    dead_strings: list[bytes] = field(default_factory=list)
    stages: list[StageCapture] = field(default_factory=list)
    dead_stages: list[int] = field(default_factory=list)
    fences: list[tuple[bytes, int, bytes]] = field(default_factory=list)  # name, epoch, check (empty: none)
    imports_changed: bool = False
    changes: int = 0  # number of its changes (INFO rdb_changes_since_last_save)

    @property
    def empty(self) -> bool:
        return not (
            self.flushed
            or self.imports_changed
            or self.streams
            or self.groups
            or self.dead_groups
            or self.dead_streams
            or self.strings
            or self.dead_strings
            or self.stages
            or self.dead_stages
            or self.fences
        )
