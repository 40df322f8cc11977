"""Replay: applies records with the mutators that logged them.

Rule 1: replay reads no clock and expires nothing.
Rule 2: replaying a record logs the same record, byte by byte. A replica thus writes its own journal. After a replay
from disk, this log is discarded.
Rule 3: a record that does not fit the state is damaged and raises CorruptError. Replay never guesses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.groups.pendingformat import assemble, head
from storage.groups.rangerow import OWNED
from storage.keyspace import copymutators, delaymutators, groupmutators, stagemutators
from storage.keyspace.groupmutators import GroupDeadLetter, Messages, Ownership
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.prefetch import appends
from storage.keyspace.values import String
from storage.model import records
from storage.model.ids import MASK64
from storage.model.records import split_ids
from storage.nodes.reference import is_reference
from storage.streams import tierafter
from storage.streams.delayed import DelayedEntries
from storage.streams.delayed import split as split_delay
from storage.streams.producers import LONGEST_MS, MOST_IDS
from storage.streams.retention import unpack as unpack_retention
from storage.streams.stream import Stream

_STEPS: Final = {0: 0, records.HAS_COUNT: 0, records.INCREMENT: 1, records.DECREMENT: -1}  # keyed by the flags of OWN
NO_MESSAGES: Final = bytes(assemble(head(0, 0, [], False)))  # the dump of an empty pending list
# raised by mutators for arguments that no mutator has logged
DAMAGE: Final = (struct.error, ValueError, KeyError, IndexError, OverflowError)


def replay(ks: Keyspace, batch: bytes) -> int:
    """Apply every record of a batch. Return their number. Raises CorruptError if one is damaged."""
    at, end, count = 0, len(batch), 0
    unpack_append = records.APPEND_HEAD.unpack_from
    head_size = records.APPEND_HEAD.size
    try:
        while at < end:
            if batch[at] == records.APPEND:
                found, stop = appends(ks.keys, batch, at)
                if found:
                    _append_all(ks, batch, at, found)
                    at = stop
                    count += len(found) // 4
                    continue
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
                    raise CorruptError(f"a record of unknown kind {op}; a newer version may have written it")
                apply(ks, batch, at, stop)
            at = stop
            count += 1
    except DAMAGE as error:
        raise CorruptError(f"an invalid record ({error!r})") from error
    return count


def _append_all(ks: Keyspace, batch: bytes, at: int, found: list[Any]) -> None:
    """Apply APPEND records that appends() parsed at ``at``."""
    keys, body, stop = ks.keys, records.APPEND_HEAD.size, at
    try:
        for i in range(0, len(found), 4):
            key: bytes = found[i]
            ms: int = found[i + 1]
            seq: int = found[i + 2]
            wire: bytes = found[i + 3]
            stream = keys.get(key)
            if stream is None:
                stream = ks.create_stream(key)
            elif not isinstance(stream, Stream):
                raise CorruptError("an APPEND record for a key that holds a string")
            last = stream.last_ms
            if ms < last or (ms == last and seq <= stream.last_seq):
                raise _not_above(ms, seq)
            ks.append_unlogged(key, stream, ms, seq, wire)
            ks.changes.count += 1
            stop += body + len(key) + len(wire)
    finally:
        if stop > at:
            ks.log.append(batch[at:stop])


def _apply_run(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq, n = records.RUN_HEAD.unpack_from(batch, at)
    start = at + records.RUN_HEAD.size
    key = batch[start : start + klen]
    middle = start + klen + 4 * n
    sizes, wire = records.unpack_sizes(batch[start + klen : middle]), part(batch, middle, stop)
    if n != len(sizes) or sum(sizes) != len(wire):
        raise CorruptError("a RUN record with inconsistent sizes")
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
        raise CorruptError("an EVICT record for entries that the stream does not have")
    ks.evict(key, stream, ordinal, evicted_to)


def _apply_delete(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    if not ks.remove(batch[at + 5 : stop]):
        raise CorruptError("a DELETE record for a key that does not exist")


def _apply_set(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, expire = records.KEY_TIME_HEAD.unpack_from(batch, at)
    start = at + records.KEY_TIME_HEAD.size
    _check_times(expire)
    ks.set_string(batch[start : start + klen], part(batch, start + klen, stop), expire)


def _apply_expire(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, _, expire = records.KEY_TIME_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.KEY_TIME_HEAD.size, stop)
    if key not in ks.keys:
        raise CorruptError("an EXPIRE record for a key that does not exist")
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
        raise CorruptError("a PATCH record for a string that does not exist, or is shorter")
    ks.patch_string(key, old, offset, part(batch, start + klen, stop))


def _apply_rename(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, new = batch[start : start + klen], part(batch, start + klen, stop)
    if key not in ks.keys or key == new:
        raise CorruptError("a RENAME record for a key that does not exist, or keeps its name")
    ks.rename(key, new)


def _apply_deleted(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, raw = records.DELETED_HEAD.unpack_from(batch, at)
    start = at + records.DELETED_HEAD.size
    stream = _need(ks, batch[start : start + klen])
    ordinals = records.unpack_ordinals(part(batch, start + klen, stop))
    highest = int.from_bytes(raw, "big")
    if (
        not ordinals
        or ordinals[0] < stream.first_ord
        or ordinals[-1] >= stream.next_ord
        or (
            highest > stream.last_id
            or any(map(int.__ge__, ordinals, ordinals[1:]))
            or (stream.tombstones is not None and any(map(stream.tombstones.has, ordinals)))
        )
    ):
        raise CorruptError("a DELETED record for entries that the stream does not have")
    ks.delete_entries(batch[start : start + klen], stream, ordinals, highest)


def _apply_set_id(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, raw, added, raw_deleted = records.SETID_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.SETID_HEAD.size, stop)
    stream, last_id, max_deleted = _need(ks, key), int.from_bytes(raw, "big"), int.from_bytes(raw_deleted, "big")
    if klen != len(key) or added >> 63 or max_deleted > last_id or (stream.length and last_id < stream.newest_id()):
        raise CorruptError("a SETID record that does not fit its stream")
    ks.set_last_id(key, stream, last_id, added, max_deleted)


def _apply_idempotent(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, plen, ms, seq, now, keep_ms, most = records.IDEMPOTENT_HEAD.unpack_from(batch, at)
    key, producer, start = _split(batch, at + records.IDEMPOTENT_HEAD.size, klen, plen)
    name = part(batch, start, stop)
    stream, entry_id = _need(ks, key), ms << 64 | seq
    _check_times(now, keep_ms)
    if not producer or not name or not most or entry_id != stream.last_id:
        raise CorruptError("an IDEMPOTENT record that does not fit its stream")
    ks.add_produced(key, stream, producer, name, entry_id, now, keep_ms, most)


def _apply_idmp(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, keep_ms, most = records.IDMP_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.IDMP_HEAD.size, stop)
    if klen != len(key) or not 0 < keep_ms <= LONGEST_MS or not 0 < most <= MOST_IDS:
        raise CorruptError("an IDMP record that is invalid")
    ks.set_idmp(key, _need(ks, key), keep_ms, most)


def _apply_produced(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, now = records.KEY_TIME_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.KEY_TIME_HEAD.size, stop)
    _check_times(now)
    if klen != len(key):
        raise CorruptError("a PRODUCED record with inconsistent lengths")
    ks.forget_produced(key, _need(ks, key), now)


def _apply_retain(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, raw = batch[start : start + klen], part(batch, start + klen, stop)
    stream = _stream(ks, key)
    if stream is None and not raw:
        raise CorruptError("a RETAIN record without a policy for a stream that does not exist")
    policy = unpack_retention(raw) if raw else None
    ks.set_retention(key, ks.create_stream(key) if stream is None else stream, policy)


def _apply_tier(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, raw = batch[start : start + klen], part(batch, start + klen, stop)
    stream = _stream(ks, key)
    if stream is None and not raw:
        raise CorruptError("a TIER record without a value for a stream that does not exist")
    ks.set_tier_after(key, ks.create_stream(key) if stream is None else stream, tierafter.unpack(raw) if raw else None)


def _apply_delay(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq = records.APPEND_HEAD.unpack_from(batch, at)
    start = at + records.APPEND_HEAD.size
    key, wire = batch[start : start + klen], part(batch, start + klen, stop)
    stream, found = _stream(ks, key), split_delay(wire)
    delayed = ks.delayed.get(key)
    _check_above(None if delayed is None else delayed.entries, ms, seq)
    if stream is None:
        stream = ks.create_stream(key)
    delaymutators.delay(ks, key, stream, delaymutators.companion(ks, key), ms, seq, wire, found)


def _apply_join(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq, now, keep_ms, most, n = records.JOIN_HEAD.unpack_from(batch, at)
    _check_times(now, keep_ms)
    start = at + records.JOIN_HEAD.size
    key = batch[start : start + klen]
    middle = start + klen + 8 * n
    ordinals = records.unpack_ordinals(batch[start + klen : middle])
    sizes = records.unpack_sizes(batch[middle : middle + 4 * n])
    here = middle + 4 * n
    wires: list[bytes] = []
    for size in sizes:
        wires.append(part(batch, here, here + size))
        here += size
    if not n or len(wires) != n or here != stop or seq + n - 1 > MASK64 or not most:
        raise CorruptError("a JOIN record with inconsistent parts")
    stream = _need(ks, key)
    _check_above(stream, ms, seq)
    delayed = _need_delayed(ks, key)
    found = [split_delay(wire) for wire in wires]
    if len(set(ordinals)) != n or not all(map(delayed.has, ordinals, found)):
        raise CorruptError("a JOIN record for delayed entries that do not exist")
    delaymutators.join(ks, key, stream, delayed, (ms, seq), now, keep_ms, most, ordinals, wires, found)


def _apply_cancel(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ordinal = records.KEY_TIME_HEAD.unpack_from(batch, at)
    start = at + records.KEY_TIME_HEAD.size
    key, wire = batch[start : start + klen], part(batch, start + klen, stop)
    delayed, found = _need_delayed(ks, key), split_delay(wire)
    if not delayed.has(ordinal, found):
        raise CorruptError("a CANCEL record for a delayed entry that does not exist")
    delaymutators.cancel(ks, key, delayed, ordinal, wire, found)


def _need_delayed(ks: Keyspace, key: bytes) -> DelayedEntries:
    delayed = ks.delayed.get(key)
    if delayed is None:
        raise CorruptError("a record for delayed entries of a key that has none")
    return delayed


def _apply_flush(ks: Keyspace, _batch: bytes, _at: int, _stop: int) -> None:
    ks.flush()


def _apply_group(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, raw, ttl, deadline = records.GROUP_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.GROUP_HEAD.size, klen, glen)
    if end != stop or not name:
        raise CorruptError("a GROUP record with inconsistent lengths")
    _check_times(ttl)
    stream = _stream(ks, key) or ks.create_stream(key)
    groupmutators.set_group(ks, key, stream, name, int.from_bytes(raw, "big"), ttl, deadline)


def _apply_deliver(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    (_, _, klen, glen, dlen, raw, now, retry, expire, most, flags, new, again, gone) = records.DELIVER_HEAD.unpack_from(
        batch, at
    )
    _check_times(now, retry, expire)
    key, name, start = _split(batch, at + records.DELIVER_HEAD.size, klen, glen)
    deadletter = batch[start : start + dlen]
    raws = split_ids(part(batch, start + dlen, stop))
    if len(raws) != new + again + gone:
        raise CorruptError("a DELIVER record with inconsistent IDs")
    stream, group = _group(ks, key, name)
    reader = groupmutators.Reader(now, retry, expire, most, deadletter, flags)
    offset = int.from_bytes(raw, "big")
    old = raws[new:]
    groupmutators.deliver(ks, key, stream, group, offset, reader, Messages(raws[:new], old[:again], old[again:]))


def _apply_ack(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.IDS_HEAD.size, klen, glen)
    groupmutators.ack(ks, key, *_group(ks, key, name), split_ids(part(batch, start, stop)))


def _apply_due(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, due = records.DUE_HEAD.unpack_from(batch, at)
    _check_times(due)
    key, name, start = _split(batch, at + records.DUE_HEAD.size, klen, glen)
    groupmutators.set_due(ks, key, *_group(ks, key, name), due, split_ids(part(batch, start, stop)))


def _apply_drop(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, dlen, raw, reason, ms, seq = records.DROP_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.DROP_HEAD.size, klen, glen)
    stream, group = _group(ks, key, name)
    entry_id = int.from_bytes(raw, "big")
    deadletter, wire = batch[start : start + dlen], part(batch, start + dlen, stop)
    letter = None
    if deadletter:
        _check_above(_stream(ks, deadletter), ms, seq)
        letter = GroupDeadLetter(deadletter, ms, seq, wire)
    elif ms or seq or wire:
        raise CorruptError("a DROP record with a dead letter without a key")
    groupmutators.drop(ks, key, stream, group, entry_id, records.REASONS[reason], letter)


def _apply_destroy(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.IDS_HEAD.size, klen, glen)
    if end != stop:
        raise CorruptError("a DESTROY record with inconsistent lengths")
    stream, _ = _group(ks, key, name)
    groupmutators.destroy_group(ks, key, stream, name)


def _apply_stage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, nlen, klen, ttl, deadline, n = records.STAGE_HEAD.unpack_from(batch, at)
    _check_times(ttl)
    name, key, start = _split(batch, at + records.STAGE_HEAD.size, nlen, klen)
    sizes, bare = records.unpack_sizes(batch[start : start + 4 * n]), part(batch, start + 4 * n, stop)
    if n != len(sizes) or sum(sizes) != len(bare):
        raise CorruptError("a STAGE record with inconsistent sizes")
    if not n:
        if klen or ttl or deadline or name not in ks.stages.by_name:
            raise CorruptError("a STAGE record without entries that is not the one of TPERSIST for an existing stage")
        stagemutators.persist(ks, name)
        return
    stagemutators.stage(ks, name, key, ttl, deadline, sizes, bare)


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
    content = stagemutators.gathered(ks, names)
    if set(content) != {key for key, _, _ in firsts} or len(content) != len(firsts):
        raise CorruptError("a PUBLISH record for other streams than those that its stages are for")
    if epoch >> 63 or epoch <= ks.stages.fences.get(body[:flen], -1):
        raise CorruptError("a PUBLISH record for an epoch that has passed, or for none")
    for key, ms, seq in firsts:
        _check_above(_stream(ks, key), ms, seq)
    stagemutators.publish(ks, body[:flen], epoch, check, names, content, firsts)


def _apply_unstage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    names, _ = records.unpack_names(batch[at + 5 : stop], 0, -1)
    if stagemutators.unstage(ks, names) != len(names):
        raise CorruptError("an UNSTAGE record for a stage that does not exist")


def _apply_xgroup(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, raw, read, flags = records.XGROUP_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.XGROUP_HEAD.size, klen, glen)
    if end != stop:
        raise CorruptError("an XGROUP record with inconsistent lengths")
    offset, entries_read = int.from_bytes(raw, "big"), _entries_read(read)
    stream = _stream(ks, key)
    group = stream.groups.get(name) if stream is not None else None
    if flags > records.LONE or (flags and group is not None) or (not flags and stream is None):
        raise CorruptError("an XGROUP record that does not fit its stream")
    if stream is None:
        stream = ks.create_stream(key)
    if group is None:
        groupmutators.create_group(ks, key, stream, name, offset, entries_read, flags == records.LONE)
    else:
        groupmutators.move_group(ks, key, stream, group, offset, entries_read)


def _apply_consumer(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, number, now = records.CONSUMER_HEAD.unpack_from(batch, at)
    _check_times(now)
    key, name, start = _split(batch, at + records.CONSUMER_HEAD.size, klen, glen)
    stream, group = _group(ks, key, name)
    consumer = part(batch, start, stop)
    if consumer in group.consumers or number != group.free_number():
        raise CorruptError("a CONSUMER record with a name or a number that is taken")
    groupmutators.consumer(ks, key, stream, group, consumer, now)


def _apply_own(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    (_, _, klen, glen, number, given, raw, read, last, now, count, new, again, gone) = records.OWN_HEAD.unpack_from(
        batch, at
    )
    _check_times(last, now, count)
    key, name, start = _split(batch, at + records.OWN_HEAD.size, klen, glen)
    raws = split_ids(part(batch, start, stop))
    stream, group = _group(ks, key, name)
    consumer, offset, entries_read = group.owners.get(number), int.from_bytes(raw, "big"), _entries_read(read)
    flags = given & ~records.QUIET
    if len(raws) != new + again + gone or flags not in _STEPS or (count and flags != records.HAS_COUNT):
        raise CorruptError("an OWN record with inconsistent parts")
    if not raws and (offset, entries_read) == (group.offset, group.entries_read):
        raise CorruptError("an OWN record that changes nothing")
    if (number and consumer is None) or not group.pending.has_all(raws[new : new + again]):
        raise CorruptError("an OWN record for a consumer or a message that does not exist")
    messages = Messages(raws[:new], raws[new : new + again], raws[new + again :])
    known = count if flags == records.HAS_COUNT else None
    terms = Ownership(known, last, _STEPS[flags], bool(given & records.QUIET))
    groupmutators.own(ks, key, stream, group, consumer, now, messages, terms, (offset, entries_read))


def _apply_forget(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, number = records.FORGET_HEAD.unpack_from(batch, at)
    key, name, end = _split(batch, at + records.FORGET_HEAD.size, klen, glen)
    stream, group = _group(ks, key, name)
    consumer = group.owners.get(number)
    if end != stop or consumer is None:
        raise CorruptError("a FORGET record for a consumer that does not exist")
    groupmutators.forget_consumer(ks, key, stream, group, consumer)


def _apply_away(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    if stop - at != records.AWAY_RECORD.size:
        raise CorruptError("an AWAY record that is invalid")
    _, _, away = records.AWAY_RECORD.unpack_from(batch, at)
    if abs(away) >> 62:
        raise CorruptError("a record with a time that is out of range")
    ks.set_away(away)


# -- keys that are copied from another group ---------------------------------------------------------------------------
def _apply_imports(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    copymutators.set_imports(ks, batch[at + 5 : stop])


def _apply_copied(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, complete = records.COPIED_HEAD.unpack_from(batch, at)
    start = at + records.COPIED_HEAD.size
    key, meta = batch[start : start + klen], part(batch, start + klen, stop)
    if complete > 1 or (key in ks.keys) != bool(complete):
        raise CorruptError("a COPIED record for a key that exists, or for one that does not")
    if complete:
        copymutators.complete(ks, key, _need(ks, key), meta)
    else:
        copymutators.begin(ks, key, meta)


def _apply_node(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, first, end, n = records.NODE_HEAD.unpack_from(batch, at)
    start = at + records.NODE_HEAD.size
    key, middle = batch[start : start + klen], start + klen + n * records.BORDERS.size
    dead = list(records.BORDERS.iter_unpack(part(batch, start + klen, middle)))
    borders = [border for pair in dead for border in pair]
    if (
        end >> 63
        or sum([high - low for low, high in dead]) > copymutators.MOST_DEAD
        or any(map(int.__ge__, borders, borders[1:]))
    ):
        raise CorruptError("a NODE record with invalid ordinals")
    blob = part(batch, middle, stop)
    if is_reference(blob) != (batch[at] == records.NODEREF):
        raise CorruptError("a NODE record with a reference, or a NODEREF record without one")
    copymutators.add_node(ks, key, _need(ks, key), first, end, dead, blob)


def _apply_group_copy(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.IDS_HEAD.size, klen, glen)
    stream = _need(ks, key)
    if not name or name in stream.groups:
        raise CorruptError("a GROUPCOPY record for a group that exists")
    copymutators.add_group(ks, key, stream, Group.restore(name, part(batch, start, stop), NO_MESSAGES))


def _apply_pending(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    fields = records.PENDING_HEAD.unpack_from(batch, at)
    (_, _, klen, glen, dlen, first, due, expire, retry, deliveries, most, owner, kind) = fields
    _check_times(first, due, expire, retry, deliveries)
    key, name, start = _split(batch, at + records.PENDING_HEAD.size, klen, glen)
    deadletter, ids = batch[start : start + dlen], split_ids(part(batch, start + dlen, stop))
    stream, group = _group(ks, key, name)
    if (
        not ids
        or any(map(bytes.__ge__, ids, ids[1:]))
        or group.pending.present(ids)
        or (kind == OWNED and (dlen or (owner and owner not in group.owners)))
        or (kind != OWNED and (kind or owner or deliveries >> 32))
    ):
        raise CorruptError("a PENDING record that does not fit its group")
    times = (first, due, expire, retry)
    copymutators.add_pending(ks, key, stream, group, deadletter, times, deliveries, most, owner, kind, ids)


def _apply_producer(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, plen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = _split(batch, at + records.IDS_HEAD.size, klen, plen)
    copymutators.add_producer(ks, key, _need(ks, key), name, part(batch, start, stop))


# Each function takes the keyspace, the batch, and the start and end of the record in it.
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
    records.DELETED: _apply_deleted,
    records.SETID: _apply_set_id,
    records.XGROUP: _apply_xgroup,
    records.CONSUMER: _apply_consumer,
    records.OWN: _apply_own,
    records.FORGET: _apply_forget,
    records.IDEMPOTENT: _apply_idempotent,
    records.IDMP: _apply_idmp,
    records.PRODUCED: _apply_produced,
    records.RETAIN: _apply_retain,
    records.TIER: _apply_tier,
    records.DELAY: _apply_delay,
    records.JOIN: _apply_join,
    records.CANCEL: _apply_cancel,
    records.AWAY: _apply_away,
    records.IMPORTS: _apply_imports,
    records.COPIED: _apply_copied,
    records.NODE: _apply_node,
    records.NODEREF: _apply_node,
    records.GROUPCOPY: _apply_group_copy,
    records.PENDING: _apply_pending,
    records.PRODUCER: _apply_producer,
}
KNOWN: Final = frozenset((records.APPEND, *_APPLY))  # kinds of records that can be replayed


def _split(batch: bytes, start: int, klen: int, glen: int) -> tuple[bytes, bytes, int]:
    middle = start + klen
    return batch[start:middle], batch[middle : middle + glen], middle + glen


def part(batch: bytes, start: int, stop: int) -> bytes:
    """Return batch[start:stop]. The check is needed because compiled slices must not end before they begin."""
    if start > stop:
        raise CorruptError("a record with a part that ends beyond it")
    return batch[start:stop]


def _check_above(stream: Stream | None, ms: int, seq: int) -> None:
    """Raise CorruptError if an ID is not above the stream's last ID. ``stream``: None for a new stream."""
    if (ms, seq) <= ((0, 0) if stream is None else (stream.last_ms, stream.last_seq)):
        raise _not_above(ms, seq)


def _check_times(*times: int) -> None:
    """Raise CorruptError if a time is not below 2**63, the limit of commands and replies."""
    for time in times:
        if time >> 63:
            raise CorruptError("a record with a time that is out of range")


def _entries_read(read: int) -> int:
    if read != records.UNKNOWN and read >> 63:
        raise CorruptError("a record with entries read that are out of range")
    return -1 if read == records.UNKNOWN else read


def _not_above(ms: int, seq: int) -> CorruptError:
    return CorruptError(f"a record whose IDs, from {ms}.{seq} on, do not follow the stream's last ID")


def _stream(ks: Keyspace, key: bytes) -> Stream | None:
    value = ks.keys.get(key)
    if value is not None and not isinstance(value, Stream):
        raise CorruptError("a stream's record for a key that holds a string")
    return value


def _need(ks: Keyspace, key: bytes) -> Stream:
    stream = _stream(ks, key)
    if stream is None:
        raise CorruptError("a record for a stream that does not exist")
    return stream


def _group(ks: Keyspace, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = _need(ks, key)
    group = stream.groups.get(name)
    if group is None:
        raise CorruptError("a record for a group that does not exist")
    return stream, group
