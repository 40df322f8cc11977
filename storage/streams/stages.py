"""Stages: entries that are invisible until a TPUBLISH appends all of them at once; and fences, which distinguish a
repeated TPUBLISH from a new one. Semantics [32].

Rule 1: staged entries have no IDs (see ``stagedentries``) until they are published. They stay in memory until then,
even if they are in the store.
Rule 2: entries for one key keep the order in which they were staged. Only the last chunk of a key is not full. A full
chunk never changes, so that publishing moves it as it is.
Rule 3: the mutators are in ``storage.keyspace.stagemutators``. This module contains the state and its captures.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from storage.model.timers import Expiring
from storage.nodes.stagedentries import CHUNK_BYTES, StagedChunk
from storage.streams.capture import Capture, StageCapture

STAGE_BYTES: Final = 700  # memory of a stage's objects
FENCE_BYTES: Final = 150


class Stage(Expiring):
    """One stage. ``sid`` identifies it in the store and is never reused."""

    __slots__ = ("_open", "_others", "bytes", "entries", "pieces", "sid", "stored")

    def __init__(self, sid: int, name: bytes, ttl: int, deadline: int) -> None:
        super().__init__(ttl, deadline)
        self.sid = sid
        self.pieces: list[StagedChunk] = []
        self.entries = 0
        self.bytes = STAGE_BYTES + 2 * len(name)  # approximate memory; a table and a timer have the name
        self.stored = False  # whether the store may contain parts of it
        # the chunk of each key that is not full: that of the last key, and those of others (None if there is one key)
        self._open: StagedChunk | None = None
        self._others: dict[bytes, StagedChunk] | None = None

    def add(self, key: bytes, sizes: array[int], bare: bytes, max_entries: int, max_bytes: int) -> None:
        """Append entries. A chunk is full with ``max_entries`` entries, or when it reaches ``max_bytes``."""
        piece = self._open_piece(key)
        total = len(sizes)
        at = start = 0
        while at < total:
            if piece is None:
                piece = StagedChunk(key)
                self.pieces.append(piece)
                self.bytes += CHUNK_BYTES + len(key)
            part = sizes[at : at + max(1, max_entries - piece.count)]
            size = sum(part)
            room = max_bytes - piece.size
            if size > room:
                del part[bisect_left(list(accumulate(part)), room) + 1 :]
                size = sum(part)
            piece.extend(part, bare if size == len(bare) else bare[start : start + size])
            at += len(part)
            start += size
            if piece.count >= max_entries or piece.size >= max_bytes:
                piece.bare = bytes(piece.bare)
                piece = None
        self._open = piece
        self.entries += total
        self.bytes += len(bare) + 4 * total

    def _open_piece(self, key: bytes) -> StagedChunk | None:
        """Remove and return the chunk of a key that is not full; None if there is none."""
        piece = self._open
        if piece is None or piece.key != key:
            if self._others is None:
                if piece is None:
                    return None
                self._others = {}
            if piece is not None:
                self._others[piece.key] = piece
            piece = self._others.pop(key, None)
        self._open = None
        return piece

    def restore_piece(self, key: bytes, sizes: array[int], bare: bytes) -> None:
        """Add the next chunk from a checkpoint."""
        piece = StagedChunk.of(key, sizes, bare)
        piece.dirty = False
        self.pieces.append(piece)
        self.entries += len(sizes)
        self.bytes += CHUNK_BYTES + len(key) + len(bare) + 4 * len(sizes)

    def capture(self, name: bytes) -> StageCapture:
        """Return the changes that the store lacks."""
        self.stored = True
        new = [(n, p, bytes(p.bare), p.sizes[:]) for n, p in enumerate(self.pieces) if p.dirty]
        for _, piece, _, _ in new:
            piece.dirty = False
        return StageCapture(self.sid, name, self.ttl, self.deadline, len(self.pieces), new)


class Stages:
    """All stages and fences of a keyspace."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, Stage] = {}
        self.fences: dict[bytes, int] = {}  # name -> the last published epoch
        self.checks: dict[bytes, bytes] = {}  # name -> the CHECK of that epoch; absent if it has none
        self.bytes = 0  # approximate memory of all stages
        self.fence_bytes = 0  # memory of all fences
        self.expired = 0  # stages that expired since the start
        self.watched: set[bytes] | None = None  # the stages that have received entries; None: they are not watched
        # changes that the next checkpoint must write
        self._dirty: dict[bytes, Stage] = {}
        self._dead: list[int] = []
        self._dirty_fences: set[bytes] = set()
        # stages of the capture in progress that are not captured yet, by sid; they can be removed but not changed
        # meanwhile
        self._capture = Capture()
        self._held: dict[int, tuple[bytes, Stage]] = {}

    def changed(self, name: bytes, stage: Stage, grown: int) -> None:
        """Record that a stage is new or received entries, and takes ``grown`` more bytes of memory."""
        self.by_name[name] = self._dirty[name] = stage
        self.bytes += grown
        if self.watched is not None:
            self.watched.add(name)

    def forget(self, names: Iterable[bytes]) -> None:
        """Remove stages that were published or dropped. Raises KeyError if a stage does not exist."""
        by_name, dirty, dead = self.by_name, self._dirty, self._dead
        gone = 0
        for name in names:
            stage = by_name.pop(name)
            gone += stage.bytes
            if dirty:
                dirty.pop(name, None)
            if stage.stored:
                dead.append(stage.sid)
        self.bytes -= gone

    def set_fence(self, fence: bytes, epoch: int, check: bytes) -> None:
        """Set the epoch of a fence. ``check``: empty if the epoch has none."""
        self.restore_fence(fence, epoch, check)
        self._dirty_fences.add(fence)

    def clear(self) -> None:
        """Remove everything (FLUSHALL). The store does the same."""
        self.by_name.clear()
        self.fences.clear()
        self.checks.clear()
        self._dirty.clear()
        self._dead.clear()
        self._dirty_fences.clear()
        self.bytes = self.fence_bytes = 0

    # -- checkpoints and start-up ----------------------------------------------------------------------------
    def begin(self, capture: Capture) -> None:
        """Start to add the changes since the last capture to ``capture``; more() and before() add the stages."""
        capture.dead_stages = self._dead
        checks = self.checks
        capture.fences = [(fence, self.fences[fence], checks.get(fence, b"")) for fence in self._dirty_fences]
        self._capture = capture
        self._held = {stage.sid: (name, stage) for name, stage in self._dirty.items()}
        for stage in self._dirty.values():
            stage.stored = True  # so that the next capture deletes it if it is removed
        self._dirty, self._dead, self._dirty_fences = {}, [], set()

    def more(self, limit: int) -> bool:
        """Capture at most ``limit`` stages. Return True once the capture is complete."""
        while self._held and limit > 0:
            name, stage = self._held.popitem()[1]
            self._capture.stages.append(stage.capture(name))
            limit -= 1
        return not self._held

    def before(self, stage: Stage) -> None:
        """Capture a stage that is about to change, if it is not captured yet."""
        held = self._held.pop(stage.sid, None) if self._held else None
        if held is not None:
            self._capture.stages.append(stage.capture(held[0]))

    def capture_failed(self, capture: Capture, flushed: bool) -> None:
        """Record all changes of a failed capture again, unless everything was ``flushed`` since."""
        left, self._held = self._held, {}
        self._capture = Capture()
        if flushed:
            return
        for name, stage in left.values():  # not yet captured when the capture failed
            if self.by_name.get(name) is stage:
                self._dirty[name] = stage
        self._dead += capture.dead_stages
        self._dirty_fences.update(fence for fence, _, _ in capture.fences if fence in self.fences)  # not flushed since
        for taken in capture.stages:
            found = self.by_name.get(taken.name)
            if found is not None and found.sid == taken.sid:
                self._dirty[taken.name] = found
                for _, piece, _, _ in taken.pieces:
                    piece.dirty = True

    def restore(self, name: bytes, sid: int, ttl: int, deadline: int) -> Stage:
        """Add a stage from a checkpoint. The caller then adds its chunks by restore_piece() and calls restored()."""
        stage = self.by_name[name] = Stage(sid, name, ttl, deadline)
        stage.stored = True
        return stage

    def restored(self, stage: Stage) -> None:
        self.bytes += stage.bytes

    def restore_fence(self, fence: bytes, epoch: int, check: bytes) -> None:
        """Add a fence from a checkpoint."""
        before = self.checks.pop(fence, b"") if self.checks else b""
        if fence not in self.fences:
            self.fence_bytes += FENCE_BYTES + len(fence)
        self.fences[fence] = epoch
        if check:
            self.checks[fence] = check
        self.fence_bytes += len(check) - len(before)

    # -- stats -----------------------------------------------------------------------------------------------
    def digest(self, update: Callable[[bytes], object]) -> None:
        """Add the content to a hash, without deadlines (a restart changes them) and boundaries of chunks."""
        for name in sorted(self.by_name):
            stage = self.by_name[name]
            update(b"H%d:%b %d" % (len(name), name, stage.ttl))
            content: dict[bytes, list[StagedChunk]] = {}
            for piece in stage.pieces:
                content.setdefault(piece.key, []).append(piece)
            for key in sorted(content):
                update(b"K%d:%b %d;" % (len(key), key, sum(map(len, content[key]))))
                for piece in content[key]:
                    update(bytes(piece.bare))
        for fence in sorted(self.fences):
            update(b"F%d:%b %d;" % (len(fence), fence, self.fences[fence]))
            if fence in self.checks:
                update(b"C%d:%b" % (len(self.checks[fence]), self.checks[fence]))
