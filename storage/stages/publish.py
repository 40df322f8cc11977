"""What happens to stages: the mutators beneath TSTAGE, TPUBLISH and TDROP.

As in ``keyspace``: each makes one effect and logs its record, and replay calls them again. What was staged stands in
the log already when it is published, so a PUBLISH record names the stages and says which ID each stream's first entry
gets: from that, everywhere, the same IDs follow [3].

Rule 1: beyond some thousand entries (``nodes.publish_written``) publishing costs a microsecond or two a stage and as
much a node, and nothing an entry: they are adopted as drafts.
Rule 2: of what a stage consists is looked at once (``gathered``). There may be many thousand stages, none of which has
been touched for a while, so much of what that costs is waiting for memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from storage import records, timers
from storage.ids import MASK64
from storage.nodes.draft import BareDraft, write
from storage.stages.stages import Piece, Stage
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


class Content:
    """What stages hold for one key, in order: small pieces are put together as far as the limits of a node go."""

    __slots__ = ("count", "drafts")

    def __init__(self, pieces: Sequence[Piece], max_entries: int, max_bytes: int) -> None:
        self.count = 0  # entries
        self.drafts: list[BareDraft] = []  # whose place isn't known yet
        held: list[Piece] = []
        entries = size = 0
        for piece in pieces:
            entries += piece.count
            size += piece.size
            if held and (entries > max_entries or size > max_bytes):
                self.drafts.append(BareDraft(0, 0, held))
                held, entries, size = [], piece.count, piece.size
            held.append(piece)
            self.count += piece.count
        if held:
            self.drafts.append(BareDraft(0, 0, held))


def gathered(ks: Keyspace, names: Iterable[bytes]) -> dict[bytes, Content]:
    """What the stages hold for each key, in the order of the stages. KeyError if one isn't there."""
    stages, nodes = ks.stages.by_name, ks.nodes
    found: dict[bytes, list[Piece]] = {}
    last: bytes | None = None
    held: list[Piece] = []
    for name in names:
        for piece in stages[name].pieces:
            if piece.key != last:
                last = piece.key
                held = found.setdefault(last, [])
            held.append(piece)
    return {key: Content(pieces, nodes.max_entries, nodes.max_bytes) for key, pieces in found.items()}


def publish(
    ks: Keyspace, fence: bytes, epoch: int, names: Sequence[bytes], content: Mapping[bytes, Content],
    firsts: Sequence[First],
) -> None:  # fmt: skip
    """Append what the stages hold, drop them, remember the epoch. ``content`` is what gathered() says of them;
    ``firsts``: one for each of its keys."""
    for key, _, _ in firsts:
        ks.before(key)
    _forget(ks, names)
    ks.stages.set_fence(fence, epoch)
    left = ks.nodes.publish_written
    total = 0
    for key, ms, seq in firsts:
        stream = ks.keys.get(key)
        if not isinstance(stream, Stream):
            stream = ks.create_stream(key)
        held = content[key]
        count = held.count
        if count <= left or MASK64 - seq < count - 1:
            _render(stream, ms, seq, held)
            left -= count
        else:
            _adopt(stream, ms, seq, held)
        ks.appended(key, stream)
        total += count
    ks.staging_logged((records.publish(fence, epoch, names, firsts),), total)


def _render(stream: Stream, ms: int, seq: int, content: Content) -> None:
    bares = [bare for draft in content.drafts for bare in draft.entries()]
    while bares:
        some = bares[: MASK64 - seq + 1]  # a run ends where the sequence number does
        stream.append_run(ms, seq, write(ms, seq, some))
        del bares[: len(some)]
        ms, seq = ms + 1, 0


def _adopt(stream: Stream, ms: int, seq: int, content: Content) -> None:
    for draft in content.drafts:
        draft.place(ms, seq)
        stream.adopt(draft, ms, seq)
        stream.nodes.drafted += draft.size
        seq += len(draft)


def unstage(ks: Keyspace, names: Iterable[bytes]) -> int:
    """Drop stages with all that they hold; returns how many there were."""
    there = [name for name in dict.fromkeys(names) if name in ks.stages.by_name]
    if there:
        _forget(ks, there)
        ks.staging_logged((records.unstage(there),), len(there))
    return len(there)


def _forget(ks: Keyspace, names: Sequence[bytes]) -> None:
    ks.stages.forget(names)
    ks.agenda.forget_all(timers.STAGE_EXPIRY, names)


def file_stage(ks: Keyspace, name: bytes, found: Stage) -> None:
    """See that the stage's end stands in the agenda."""
    if found.deadline:
        ks.agenda.file(timers.STAGE_EXPIRY, name, b"", found.deadline)


def live(ks: Keyspace, name: bytes, now: int) -> Stage | None:
    """The stage; one whose time is over is dropped here, and that logged, as expired keys are."""
    found = ks.stages.by_name.get(name)
    if found is not None and found.deadline and found.deadline <= now:
        ks.stages.expired += 1
        unstage(ks, [name])
        return None
    return found
