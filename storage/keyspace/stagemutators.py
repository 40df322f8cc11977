"""The mutators of stages: the effects of TSTAGE, TPERSIST, TPUBLISH, and TDROP.

As in ``keyspace``, each mutator applies one effect and logs its record, and replay calls the same mutators. Staged
entries are already in the log when they are published. A PUBLISH record therefore contains the names of the stages and
the first ID for each stream, from which all other IDs follow [3].

Rule 1: beyond a few thousand entries (``NodePool.publish_written``), publishing costs one or two microseconds per stage
and per node, but nothing per entry, since the entries are adopted as drafts.
Rule 2: the content of the stages is read once (``gathered``). Since thousands of stages may not have been accessed for
a while, much of the cost is cache misses.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model import records, timers
from storage.model.ids import MASK64
from storage.nodes.draft import StagedDraft
from storage.nodes.stagedentries import StagedChunk, write
from storage.streams.stages import Stage
from storage.streams.stream import Stream

First = tuple[bytes, int, int]  # key, ms, and seq of the first entry for a stream


def stage(
    ks: Keyspace, name: bytes, key: bytes, ttl: int, deadline: int, sizes: array[int], bare: bytes
) -> Stage:  # fmt: skip
    """Add entries (at least one) to a stage; create the stage if it is new. ``sizes``: the size of each in ``bare``."""
    found = ks.stages.by_name.get(name)
    before = 0
    if found is None:
        found = Stage(ks.next_sid, name, ttl, deadline)
        ks.next_sid += 1
    else:
        ks.stages.before(found)
        before = found.bytes
        found.ttl, found.deadline = ttl, deadline
    found.add(key, sizes, bare, ks.pool.max_entries, ks.pool.max_bytes)
    ks.stages.changed(name, found, found.bytes - before)
    ks.staging_logged(records.stage(name, key, ttl, deadline, sizes, bare), len(sizes))
    ks.arm_stage(name, found)
    return found


def persist(ks: Keyspace, name: bytes) -> None:
    """Remove the time to live of a stage. Raises KeyError if it does not exist."""
    found = ks.stages.by_name[name]
    if not found.ttl:
        return
    ks.stages.before(found)
    found.ttl, found.deadline = 0, timers.NEVER
    ks.stages.changed(name, found, 0)
    ks.timers.cancel_all(timers.STAGE_EXPIRY, (name,))
    ks.staging_logged(records.stage(name, b"", 0, timers.NEVER, array("I"), b""), 1)


class StagedContent:
    """The staged entries for one key, in order. Small chunks are combined within the limits of a node."""

    __slots__ = ("count", "drafts")

    def __init__(self, pieces: Sequence[StagedChunk], max_entries: int, max_bytes: int) -> None:
        self.count = 0  # number of entries
        self.drafts: list[StagedDraft] = []  # without IDs
        held: list[StagedChunk] = []
        entries = size = 0
        for piece in pieces:
            entries += piece.count
            size += piece.size
            if held and (entries > max_entries or size > max_bytes):
                self.drafts.append(StagedDraft(0, 0, held))
                held, entries, size = [], piece.count, piece.size
            held.append(piece)
            self.count += piece.count
        if held:
            self.drafts.append(StagedDraft(0, 0, held))


def gathered(ks: Keyspace, names: Iterable[bytes]) -> dict[bytes, StagedContent]:
    """Return the content of stages by key, in the order of the stages. Raises KeyError if a stage does not exist."""
    stages, pool = ks.stages.by_name, ks.pool
    found: dict[bytes, list[StagedChunk]] = {}
    last: bytes | None = None
    held: list[StagedChunk] = []
    for name in names:
        for piece in stages[name].pieces:
            if piece.key != last:
                last = piece.key
                held = found.setdefault(last, [])
            held.append(piece)
    return {key: StagedContent(pieces, pool.max_entries, pool.max_bytes) for key, pieces in found.items()}


def publish(
    ks: Keyspace, fence: bytes, epoch: int, check: bytes, names: Sequence[bytes],
    content: Mapping[bytes, StagedContent], firsts: Sequence[First],
) -> None:  # fmt: skip
    """Append the content of stages, remove the stages, and record the epoch and its check (empty: none).

    ``content``: the result of gathered(). ``firsts``: one item for each of its keys.
    """
    for key, _, _ in firsts:
        ks.before(key)
    _forget(ks, names)
    ks.stages.set_fence(fence, epoch, check)
    if ks.tracked:
        ks.events.append((events.CHANGED, fence))
    left = ks.pool.publish_written
    total = 0
    for key, ms, seq in firsts:
        stream = ks.keys.get(key)
        if not isinstance(stream, Stream):
            stream = ks.create_stream(key)
        held = content[key]
        count = held.count
        if count <= left or MASK64 - seq < count - 1:
            _append(stream, ms, seq, held)
            left -= count
        else:
            _adopt(stream, ms, seq, held)
        ks.appended(key, stream)
        total += count
    ks.staging_logged((records.publish(fence, epoch, check, names, firsts),), total)


def _append(stream: Stream, ms: int, seq: int, content: StagedContent) -> None:
    bares = [bare for draft in content.drafts for bare in draft.entries()]
    while bares:
        some = bares[: MASK64 - seq + 1]  # the remaining entries get the next millisecond
        wires = write(ms, seq, some)
        stream.append_packed(ms, seq, array("I", list(map(len, wires))), b"".join(wires))
        del bares[: len(some)]
        ms, seq = ms + 1, 0


def _adopt(stream: Stream, ms: int, seq: int, content: StagedContent) -> None:
    for draft in content.drafts:
        draft.set_first_id(ms, seq)
        stream.adopt(draft, ms, seq)
        seq += len(draft)


def unstage(ks: Keyspace, names: Iterable[bytes]) -> int:
    """Remove stages and their content. Return how many of them existed."""
    there = [name for name in dict.fromkeys(names) if name in ks.stages.by_name]
    if there:
        _forget(ks, there)
        ks.staging_logged((records.unstage(there),), len(there))
    return len(there)


def _forget(ks: Keyspace, names: Sequence[bytes]) -> None:
    ks.stages.forget(names)
    ks.timers.cancel_all(timers.STAGE_EXPIRY, names)


def live(ks: Keyspace, name: bytes, served: int) -> Stage | None:
    """Return a stage; None if there is none. Like a key, an expired stage is removed here, which is logged."""
    found = ks.stages.by_name.get(name)
    if found is not None and found.deadline and found.deadline <= served:
        ks.stages.expired += 1
        unstage(ks, [name])
        return None
    return found
