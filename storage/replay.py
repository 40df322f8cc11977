"""Replay: records back into effects, by the same mutators that wrote them.

Rule 1: replay reads no clock and expires nothing.
Rule 2: replaying a record logs the very same record, byte by byte. That is how a replica writes its own journal; after
replay from disk that log is thrown away.
Rule 3: a record that can't apply to the state is damage and raises CorruptError; replay never guesses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from resp.errors import CorruptError
from storage import records
from storage.groups import effects
from storage.groups.group import Group
from storage.ids import MASK64
from storage.keyspace import Keyspace
from storage.records import split_ids
from storage.stages import publish
from storage.stream import Stream
from storage.values import String

# what mutators raise when they are given what no mutator has logged
DAMAGE: Final = (struct.error, ValueError, KeyError, IndexError, OverflowError)


def replay(ks: Keyspace, batch: bytes) -> int:
    """Apply every record of a batch; returns their number. Raises CorruptError."""
    at, end, count = 0, len(batch), 0
    unpack_append = records.APPEND_HEAD.unpack_from
    head_size = records.APPEND_HEAD.size
    try:
        while at < end:
            op, size = records.HEAD.unpack_from(batch, at)
            stop = at + 5 + size
            if stop > end:
                raise CorruptError("a record that ends beyond its batch")
            if op == records.APPEND:
                _, _, klen, ms, seq = unpack_append(batch, at)
                start = at + head_size
                key = batch[start : start + klen]
                stream = ks.keys.get(key)
                if stream is None:
                    stream = ks.create_stream(key)
                elif not isinstance(stream, Stream):
                    raise CorruptError("an APPEND record for a key that holds a string")
                if (ms, seq) <= (stream.last_ms, stream.last_seq):
                    raise _not_above(ms, seq)
                ks.append(key, stream, ms, seq, part(batch, start + klen, stop))
            else:
                apply = _APPLY.get(op)
                if apply is None:
                    raise CorruptError(f"a record of unknown kind {op}: written by a newer version?")
                apply(ks, batch, at, stop)
            at = stop
            count += 1
    except DAMAGE as error:
        raise CorruptError(f"a record that makes no sense ({error!r})") from error
    return count


def _apply_run(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq, n = records.RUN_HEAD.unpack_from(batch, at)
    start = at + records.RUN_HEAD.size
    key = batch[start : start + klen]
    middle = start + klen + 4 * n
    sizes, wire = records.unpack_sizes(batch[start + klen : middle]), part(batch, middle, stop)
    if n != len(sizes) or sum(sizes) != len(wire):
        raise CorruptError("a RUN record whose sizes don't add up")
    stream = _stream(ks, key) or ks.create_stream(key)
    if not n or (ms, seq) <= (stream.last_ms, stream.last_seq) or seq + n - 1 > MASK64:
        raise _not_above(ms, seq)
    ks.append_packed(key, stream, ms, seq, sizes, wire)


def _apply_evict(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, _, ordinal, raw = records.EVICT_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.EVICT_HEAD.size, stop)
    stream = _need(ks, key)
    evicted_to = int.from_bytes(raw, "big")
    if not (stream.first_ord < ordinal <= stream.next_ord and stream.evicted_to < evicted_to <= stream.last_id):
        raise CorruptError("an EVICT record for entries that the stream doesn't have")
    ks.evict(key, stream, ordinal, evicted_to)


def _apply_delete(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    if not ks.remove(batch[at + 5 : stop]):
        raise CorruptError("a DELETE record for a key that isn't there")


def _apply_set(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, expire = records.KEY_TIME_HEAD.unpack_from(batch, at)
    start = at + records.KEY_TIME_HEAD.size
    _check_times(expire)
    ks.set_string(batch[start : start + klen], part(batch, start + klen, stop), expire)


def _apply_expire(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, _, expire = records.KEY_TIME_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.KEY_TIME_HEAD.size, stop)
    if key not in ks.keys:
        raise CorruptError("an EXPIRE record for a key that isn't there")
    _check_times(expire)
    if expire:
        ks.set_expire(key, expire)
    else:
        ks.persist(key)


def _apply_patch(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, offset = records.KEY_TIME_HEAD.unpack_from(batch, at)
    start = at + records.KEY_TIME_HEAD.size
    key = batch[start : start + klen]
    old = ks.keys.get(key)
    if not isinstance(old, String) or offset > len(old.value):
        raise CorruptError("a PATCH record for a string that isn't there, or is shorter")
    ks.patch_string(key, old, offset, part(batch, start + klen, stop))


def _apply_rename(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, new = batch[start : start + klen], part(batch, start + klen, stop)
    if key not in ks.keys or key == new:
        raise CorruptError("a RENAME record for a key that isn't there, or keeps its name")
    ks.rename(key, new)


def _apply_flush(ks: Keyspace, _batch: bytes, _at: int, _stop: int) -> None:
    ks.flush()


def _apply_group(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, raw, ttl, deadline = records.GROUP_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.GROUP_HEAD.size, klen, glen)
    if end != stop or not name:
        raise CorruptError("a GROUP record whose lengths don't add up")
    _check_times(ttl)
    stream = _stream(ks, key) or ks.create_stream(key)
    effects.set_group(ks, key, stream, name, int.from_bytes(raw, "big"), ttl, deadline)


def _apply_deliver(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    (_, _, klen, glen, dlen, raw, now, retry, expire, most, flags, new, again, gone) = (
        records.DELIVER_HEAD.unpack_from(batch, at)
    )
    _check_times(now, retry, expire)
    key, name, start = _split(batch, at + records.DELIVER_HEAD.size, klen, glen)
    deadletter = batch[start : start + dlen]
    raws = split_ids(part(batch, start + dlen, stop))
    if len(raws) != new + again + gone:
        raise CorruptError("a DELIVER record whose IDs don't add up")
    stream, group = _group(ks, key, name)
    reader = effects.Reader(now, retry, expire, most, deadletter, flags)
    offset = int.from_bytes(raw, "big")
    old = raws[new:]
    effects.deliver(ks, key, stream, group, offset, reader, raws[:new], old[:again], old[again:])


def _apply_ack(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.IDS_HEAD.size, klen, glen)
    effects.ack(ks, key, *_group(ks, key, name), split_ids(part(batch, start, stop)))


def _apply_due(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, due = records.DUE_HEAD.unpack_from(batch, at)
    _check_times(due)
    key, name, start = _split(batch, at + records.DUE_HEAD.size, klen, glen)
    effects.set_due(ks, key, *_group(ks, key, name), due, split_ids(part(batch, start, stop)))


def _apply_drop(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, dlen, raw, reason, ms, seq = records.DROP_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.DROP_HEAD.size, klen, glen)
    stream, group = _group(ks, key, name)
    entry_id = int.from_bytes(raw, "big")
    deadletter, wire = batch[start : start + dlen], part(batch, start + dlen, stop)
    if deadletter:
        _check_above(_stream(ks, deadletter), ms, seq)
    effects.drop(ks, key, stream, group, entry_id, records.REASONS[reason], deadletter, ms, seq, wire)


def _apply_destroy(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.IDS_HEAD.size, klen, glen)
    if end != stop:
        raise CorruptError("a DESTROY record whose lengths don't add up")
    stream, _ = _group(ks, key, name)
    effects.destroy_group(ks, key, stream, name)


def _apply_stage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, nlen, klen, ttl, deadline, n = records.STAGE_HEAD.unpack_from(batch, at)
    _check_times(ttl)
    name, key, start = _split(batch, at + records.STAGE_HEAD.size, nlen, klen)
    sizes, bare = records.unpack_sizes(batch[start : start + 4 * n]), part(batch, start + 4 * n, stop)
    if not n or n != len(sizes) or sum(sizes) != len(bare):
        raise CorruptError("a STAGE record whose sizes don't add up")
    publish.stage(ks, name, key, ttl, deadline, sizes, bare)


def _apply_publish(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _publish(ks, b"", part(batch, at + records.HEAD.size, stop))


def _apply_checked(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    body = part(batch, at + records.HEAD.size, stop)
    (check,), begin = records.unpack_names(body, 0, 1)
    if not 1 <= len(check) <= 255:  # the store has one byte for its length
        raise CorruptError("a CHECKED record whose check is empty or too long")
    _publish(ks, check, body[begin:])


def _publish(ks: Keyspace, check: bytes, body: bytes) -> None:
    flen, epoch, stages, streams = records.PUBLISH_BODY.unpack_from(body)
    body = part(body, records.PUBLISH_BODY.size, len(body))
    names, middle = records.unpack_names(body, flen, stages)
    firsts = records.unpack_firsts(body, middle, streams)
    content = publish.gathered(ks, names)
    if set(content) != {key for key, _, _ in firsts} or len(content) != len(firsts):
        raise CorruptError("a PUBLISH record for other streams than those that its stages are for")
    if epoch >> 63 or epoch <= ks.stages.fences.get(body[:flen], -1):
        raise CorruptError("a PUBLISH record for an epoch that has passed, or for none")
    for key, ms, seq in firsts:
        _check_above(_stream(ks, key), ms, seq)
    publish.publish(ks, body[:flen], epoch, check, names, content, firsts)


def _apply_unstage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    names, _ = records.unpack_names(batch[at + 5 : stop], 0, -1)
    if publish.unstage(ks, names) != len(names):
        raise CorruptError("an UNSTAGE record for a stage that isn't there")


# Each takes the keyspace, the batch, and where the record begins and ends in it.
_APPLY: Final[dict[int, Callable[[Keyspace, bytes, int, int], None]]] = {
    records.RUN: _apply_run,
    records.EVICT: _apply_evict,
    records.DELETE: _apply_delete,
    records.SET: _apply_set,
    records.EXPIRE: _apply_expire,
    records.FLUSH: _apply_flush,
    records.GROUP: _apply_group,
    records.DELIVER: _apply_deliver,
    records.ACK: _apply_ack,
    records.DUE: _apply_due,
    records.DROP: _apply_drop,
    records.DESTROY: _apply_destroy,
    records.STAGE: _apply_stage,
    records.PUBLISH: _apply_publish,
    records.UNSTAGE: _apply_unstage,
    records.CHECKED: _apply_checked,
    records.PATCH: _apply_patch,
    records.RENAME: _apply_rename,
}
KNOWN: Final = frozenset((records.APPEND, *_APPLY))  # kinds of records that can be replayed


def _split(batch: bytes, start: int, klen: int, glen: int) -> tuple[bytes, bytes, int]:
    middle = start + klen
    return batch[start:middle], batch[middle : middle + glen], middle + glen


def part(batch: bytes, start: int, stop: int) -> bytes:
    """The bytes between. The check is for compiled code, which can't make a slice that ends before it begins."""
    if start > stop:
        raise CorruptError("a record with a part that ends beyond it")
    return batch[start:stop]


def _check_above(stream: Stream | None, ms: int, seq: int) -> None:
    """Raises CorruptError if ms.seq can't be the stream's next ID; None is one that is still to be made."""
    if (ms, seq) <= ((0, 0) if stream is None else (stream.last_ms, stream.last_seq)):
        raise _not_above(ms, seq)


def _check_times(*times: int) -> None:
    """Commands take times below 2**63 only, and replies can't hold others. Raises CorruptError."""
    for time in times:
        if time >> 63:
            raise CorruptError("a record with a time that is out of range")


def _not_above(ms: int, seq: int) -> CorruptError:
    return CorruptError(f"a record whose IDs, from {ms}.{seq} on, can't follow the stream's last")


def _stream(ks: Keyspace, key: bytes) -> Stream | None:
    value = ks.keys.get(key)
    if value is not None and not isinstance(value, Stream):
        raise CorruptError("a stream's record for a key that holds a string")
    return value


def _need(ks: Keyspace, key: bytes) -> Stream:
    stream = _stream(ks, key)
    if stream is None:
        raise CorruptError("a record for a stream that isn't there")
    return stream


def _group(ks: Keyspace, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = _need(ks, key)
    group = stream.groups.get(name)
    if group is None:
        raise CorruptError("a record for a group that isn't there")
    return stream, group
