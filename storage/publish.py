"""What happens to stages: the mutators beneath TSTAGE, TPUBLISH and TDROP.

As in ``keyspace``: each makes one effect and logs its record, and replay calls them again. What was staged stands in
the log already when it is published, so a PUBLISH record names the stages and says which ID each stream's first entry
gets: from that, everywhere, the same IDs follow [3].

Rule 1: beyond some thousand entries (``nodes.publish_written``) publishing costs some microseconds a node, and nothing
an entry: they are adopted as drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from storage import agenda, records
from storage.draft import BareDraft, write
from storage.ids import MASK64
from storage.stages import Piece, Stage, grouped
from storage.stream import Stream

if TYPE_CHECKING:
    from storage.keyspace import Keyspace

First = tuple[bytes, int, int]  # key, ms, seq: of the first entry that a stream gets


def stage(
    ks: Keyspace, name: bytes, key: bytes, ttl: int, deadline: int, sizes: array[int], bare: bytes
) -> Stage:  # fmt: skip
    """Keep entries aside; a stage that isn't there is made. ``sizes``: bytes of each entry of ``bare``; one or more."""
    found = ks.stages.by_name.get(name)
    before = 0
    if found is None:
        found = Stage(ks.next_sid, ttl, deadline)
        ks.next_sid += 1
    else:
        before = found.bytes
        found.ttl, found.deadline = ttl, deadline
    found.add(key, sizes, bare, ks.nodes.max_entries, ks.nodes.max_bytes)
    ks.stages.changed(name, found, found.bytes - before)
    ks.staging_logged(records.stage(name, key, ttl, deadline, sizes, bare), len(sizes))
    file_stage(ks, name, found)
    return found


def publish(
    ks: Keyspace, fence: bytes, epoch: int, names: Sequence[bytes], content: Mapping[bytes, Sequence[Piece]],
    firsts: Sequence[First],
) -> None:  # fmt: skip
    """Append what the stages hold, drop them, remember the epoch. ``content`` is what gathered() says of them;
    ``firsts``: one for each of its keys."""
    for name in names:
        _forget(ks, name)
    ks.stages.set_fence(fence, epoch)
    left = ks.nodes.publish_written
    total = 0
    for key, ms, seq in firsts:
        stream = ks.keys.get(key)
        if not isinstance(stream, Stream):
            stream = ks.create_stream(key)
        pieces = content[key]
        count = sum(map(len, pieces))
        if count <= left or MASK64 - seq < count - 1:
            _render(stream, ms, seq, pieces)
            left -= count
        else:
            _adopt(stream, ms, seq, pieces)
        ks.appended(key, stream)
        total += count
    ks.staging_logged((records.publish(fence, epoch, names, firsts),), total)


def _render(stream: Stream, ms: int, seq: int, pieces: Iterable[Piece]) -> None:
    bares = [bare for piece in pieces for bare in piece.entries()]
    while bares:
        some = bares[: MASK64 - seq + 1]  # a run ends where the sequence number does
        stream.append_run(ms, seq, write(ms, seq, some))
        del bares[: len(some)]
        ms, seq = ms + 1, 0


def _adopt(stream: Stream, ms: int, seq: int, pieces: Iterable[Piece]) -> None:
    nodes = stream.nodes
    for group in grouped(pieces, nodes.max_entries, nodes.max_bytes):
        draft = BareDraft(ms, seq, group)
        stream.adopt(draft, ms, seq)
        nodes.drafted += draft.size
        seq += len(draft)


def unstage(ks: Keyspace, names: Iterable[bytes]) -> int:
    """Drop stages with all that they hold; returns how many there were."""
    there = [name for name in dict.fromkeys(names) if name in ks.stages.by_name]
    if there:
        for name in there:
            _forget(ks, name)
        ks.staging_logged((records.unstage(there),), len(there))
    return len(there)


def _forget(ks: Keyspace, name: bytes) -> None:
    ks.stages.forget(name)
    ks.agenda.forget(agenda.STAGE_EXPIRY, name)


def file_stage(ks: Keyspace, name: bytes, found: Stage) -> None:
    """See that the stage's end stands in the agenda."""
    if found.deadline:
        ks.agenda.file(agenda.STAGE_EXPIRY, name, b"", found.deadline)


def live(ks: Keyspace, name: bytes, now: int) -> Stage | None:
    """The stage; one whose time is over is dropped here, and that logged, as expired keys are."""
    found = ks.stages.by_name.get(name)
    if found is not None and found.deadline and found.deadline <= now:
        ks.stages.expired += 1
        unstage(ks, [name])
        return None
    return found
