"""Applies what another group sends of the keys that move to this group: copies of keys, and records [112].

The records are converted to records of this server, which are then replayed, and thereby logged:

Rule 1: times in served time are shifted by the difference between the clocks of both groups.
Rule 2: a delayed entry has another ordinal here. JOIN and CANCEL find it by its token.
Rule 3: published stages are appended as entries, since they may contain others, see ``moving``.
Rule 4: a fence is never lowered. This server can have a later value only from an earlier owner of the slot.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from resp.errors import CorruptError
from resp.reply import bulk
from storage.groups.group import Group
from storage.groups.rangerow import OWNED
from storage.keyspace import stagemutators
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.keyspace.replaycopies import NO_MESSAGES
from storage.keyspace.replayparts import DAMAGE, part
from storage.model import records
from storage.model.entries import COUNTS, id_bulk
from storage.model.ids import MASK64
from storage.nodes.stagedentries import write
from storage.streams.delayed import SHIFT, WALL, DelayedEntries, StoredDelay, split

RUN_ENTRIES: Final = 1000  # of a published stage in one record
_SHIFTED: Final = frozenset((
    records.GROUP, records.DELIVER, records.DUE, records.STAGE, records.DELAY, records.GROUPCOPY, records.PENDING
))  # fmt: skip
_CONVERTED: Final = frozenset((records.DELETE, records.JOIN, records.CANCEL, records.PUBLISH, records.CHECKED))


def apply(ks: Keyspace, batch: bytes, shift: int) -> None:
    """Apply and log records. ``shift``: what is added to served times (ms). Raises CorruptError if they do not fit the
    state; some may have been applied then."""
    converted = _CONVERTED | _SHIFTED if shift else _CONVERTED
    follower, classes = ks.follower, ks.event_classes
    ks.follower, ks.event_classes = True, 0  # the records of the other group say everything
    try:
        at = begin = 0
        end, unpack = len(batch), records.HEAD.unpack_from
        while at < end:
            op, size = unpack(batch, at)
            stop = at + 5 + size
            if stop > end:
                raise CorruptError("a record that ends beyond its batch")
            if op in (records.FLUSH, records.AWAY, records.IMPORTS):
                raise CorruptError(f"a record of kind {op}, which affects other keys")
            if op in converted:
                if begin < at:
                    replay(ks, batch[begin:at])
                for record in _convert(ks, op, batch, at, stop, shift):
                    replay(ks, record)
                begin = stop
            at = stop
        if begin < end:
            replay(ks, batch[begin:] if begin else batch)
    except DAMAGE as error:
        raise CorruptError(f"an invalid record ({error!r})") from error
    finally:
        ks.follower, ks.event_classes = follower, classes


def _convert(ks: Keyspace, op: int, batch: bytes, at: int, stop: int, shift: int) -> Iterator[bytes]:
    body = batch[at + 5 : stop]
    if op == records.DELETE:
        if body in ks.keys:
            yield batch[at:stop]
    elif op == records.JOIN:
        yield _join(ks, batch, at, stop)
    elif op == records.CANCEL:
        klen = records.LENGTH.unpack_from(batch, at + 5)[0]
        start = at + records.KEY_TIME_HEAD.size
        key = batch[start : start + klen]
        ordinal, wire = _found(ks, key, part(batch, start + klen, stop))
        yield records.cancel(key, ordinal, wire)
    elif op == records.PUBLISH:
        yield from _published(ks, b"", body)
    elif op == records.CHECKED:
        (check,), begin = records.unpack_names(body, 0, 1)
        yield from _published(ks, check, part(body, begin, len(body)))
    else:
        yield _shifted(op, batch, at, stop, shift)


# -- served time -----------------------------------------------------------------------------------------------------
def _shifted(op: int, batch: bytes, at: int, stop: int, shift: int) -> bytes:
    """Return a record with its served times shifted. A time of 0 means never."""
    record = bytearray(batch[at:stop])
    if op == records.DELAY:
        return _shifted_delay(batch, at, stop, shift)
    if op == records.GROUPCOPY:
        _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
        start = at + records.IDS_HEAD.size
        key, name = batch[start : start + klen], batch[start + klen : start + klen + glen]
        group = Group.restore(name, part(batch, start + klen + glen, stop), NO_MESSAGES)
        group.deadline = _later(group.deadline, shift)
        return records.group_copy(key, name, group.meta())
    if op == records.GROUP:
        head = records.GROUP_HEAD
        *rest, deadline = head.unpack_from(record)
        head.pack_into(record, 0, *rest, _later(deadline, shift))
    elif op == records.DELIVER:
        head = records.DELIVER_HEAD
        fields = list(head.unpack_from(record))
        fields[8] = _later(fields[8], shift)
        head.pack_into(record, 0, *fields)
    elif op == records.DUE:
        head = records.DUE_HEAD
        *rest, due = head.unpack_from(record)
        head.pack_into(record, 0, *rest, max(0, due + shift))
    elif op == records.STAGE:
        head = records.STAGE_HEAD
        fields = list(head.unpack_from(record))
        fields[5] = _later(fields[5], shift)
        head.pack_into(record, 0, *fields)
    else:
        head = records.PENDING_HEAD
        fields = list(head.unpack_from(record))
        if fields[12] != OWNED:  # otherwise, they are wall-clock times
            fields[6], fields[7] = max(0, fields[6] + shift), _later(fields[7], shift)
        head.pack_into(record, 0, *fields)
    return bytes(record)


def _later(time: int, shift: int) -> int:
    return max(1, time + shift) if time else 0


def _shifted_delay(batch: bytes, at: int, stop: int, shift: int) -> bytes:
    _, _, klen, ms, seq = records.APPEND_HEAD.unpack_from(batch, at)
    start = at + records.APPEND_HEAD.size
    key, wire = batch[start : start + klen], part(batch, start + klen, stop)
    found = split(wire)
    if found.flags & WALL:
        return batch[at:stop]
    return records.delay(key, ms, seq, _stored(found._replace(due=max(0, found.due + shift)), ms, seq))


def _stored(found: StoredDelay, ms: int, seq: int) -> bytes:
    """Return an entry of the companion."""
    words = found.values + 3
    count = COUNTS[words] if words < len(COUNTS) else b"*%d\r\n" % words
    due = b"%d" % (found.due << SHIFT | found.flags)
    return b"".join((count, id_bulk(ms, seq), b"\r\n", bulk(found.token), bulk(due), found.rest))


# -- delayed entries -------------------------------------------------------------------------------------------------
def _found(ks: Keyspace, key: bytes, wire: bytes) -> tuple[int, bytes]:
    """Return ordinal and wire form here of a delayed entry of the other group."""
    delayed: DelayedEntries | None = ks.delayed.get(key)
    found = None if delayed is None else delayed.find(split(wire).token)
    if found is None or delayed is None:
        raise CorruptError("a record for a delayed entry that does not exist")
    return found[0], delayed.read(found[0])


def _join(ks: Keyspace, batch: bytes, at: int, stop: int) -> bytes:
    _, _, klen, ms, seq, now, keep_ms, most, n = records.JOIN_HEAD.unpack_from(batch, at)
    start = at + records.JOIN_HEAD.size
    key = batch[start : start + klen]
    middle = start + klen + 8 * n
    here = middle + 4 * n
    ordinals: list[int] = []
    wires: list[bytes] = []
    for size in records.unpack_sizes(part(batch, middle, here)):
        ordinal, wire = _found(ks, key, part(batch, here, here + size))
        ordinals.append(ordinal)
        wires.append(wire)
        here += size
    if here != stop:
        raise CorruptError("a JOIN record with inconsistent parts")
    return records.join(key, ms, seq, now, keep_ms, most, ordinals, wires)


# -- stages ----------------------------------------------------------------------------------------------------------
def _published(ks: Keyspace, check: bytes, body: bytes) -> Iterator[bytes]:
    flen, epoch, stages, streams = records.PUBLISH_BODY.unpack_from(body)
    body = part(body, records.PUBLISH_BODY.size, len(body))
    names, middle = records.unpack_names(body, flen, stages)
    content = stagemutators.gathered(ks, names)
    for key, ms, seq in records.unpack_firsts(body, middle, streams):
        held = content.get(key)
        if held is None:
            raise CorruptError("a PUBLISH record for other streams than those that its stages are for")
        bares = [bare for draft in held.drafts for bare in draft.entries()]
        for first in range(0, len(bares), RUN_ENTRIES):
            some = bares[first : first + RUN_ENTRIES]
            while some:  # the remaining entries get the next millisecond
                fitting = some[: MASK64 - seq + 1]
                wires = write(ms, seq, fitting)
                yield b"".join(records.run(key, ms, seq, array("I", map(len, wires)), b"".join(wires)))
                del some[: len(fitting)]
                seq += len(fitting)
                if seq > MASK64:
                    ms, seq = ms + 1, 0
    if names:
        yield records.unstage(names)
    fence = body[:flen]
    if fence and epoch > ks.stages.fences.get(fence, -1):
        yield records.publish(fence, epoch, check, (), ())
