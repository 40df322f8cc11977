"""Replay of the records of groups (see ``replay``)."""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import GroupDeadLetter, Messages, Ownership
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replayparts import (
    Appliers,
    check_above,
    check_times,
    entries_read_of,
    need_group,
    part,
    split_names,
    stream_at,
)
from storage.model import records
from storage.model.records import split_ids

_STEPS: Final = {0: 0, records.HAS_COUNT: 0, records.INCREMENT: 1, records.DECREMENT: -1}  # keyed by the flags of OWN


def _apply_group(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, raw, ttl, deadline = records.GROUP_HEAD.unpack_from(batch, at)
    key, name, end = split_names(batch, at + records.GROUP_HEAD.size, klen, glen)
    if end != stop or not name:
        raise CorruptError("a GROUP record with inconsistent lengths")
    check_times(ttl)
    stream = stream_at(ks, key) or ks.create_stream(key)
    groupmutators.set_group(ks, key, stream, name, int.from_bytes(raw, "big"), ttl, deadline)


def _apply_deliver(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    (_, _, klen, glen, dlen, raw, now, retry, expire, most, flags, new, again, gone) = records.DELIVER_HEAD.unpack_from(
        batch, at
    )
    check_times(now, retry, expire)
    key, name, start = split_names(batch, at + records.DELIVER_HEAD.size, klen, glen)
    deadletter = batch[start : start + dlen]
    raws = split_ids(part(batch, start + dlen, stop))
    if len(raws) != new + again + gone:
        raise CorruptError("a DELIVER record with inconsistent IDs")
    stream, group = need_group(ks, key, name)
    reader = groupmutators.Reader(now, retry, expire, most, deadletter, flags)
    offset = int.from_bytes(raw, "big")
    old = raws[new:]
    groupmutators.deliver(ks, key, stream, group, offset, reader, Messages(raws[:new], old[:again], old[again:]))


def _apply_ack(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = split_names(batch, at + records.IDS_HEAD.size, klen, glen)
    groupmutators.ack(ks, key, *need_group(ks, key, name), split_ids(part(batch, start, stop)))


def _apply_due(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, due = records.DUE_HEAD.unpack_from(batch, at)
    check_times(due)
    key, name, start = split_names(batch, at + records.DUE_HEAD.size, klen, glen)
    groupmutators.set_due(ks, key, *need_group(ks, key, name), due, split_ids(part(batch, start, stop)))


def _apply_drop(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, dlen, raw, reason, ms, seq = records.DROP_HEAD.unpack_from(batch, at)
    key, name, start = split_names(batch, at + records.DROP_HEAD.size, klen, glen)
    stream, group = need_group(ks, key, name)
    entry_id = int.from_bytes(raw, "big")
    deadletter, wire = batch[start : start + dlen], part(batch, start + dlen, stop)
    letter = None
    if deadletter:
        check_above(stream_at(ks, deadletter), ms, seq)
        letter = GroupDeadLetter(deadletter, ms, seq, wire)
    elif ms or seq or wire:
        raise CorruptError("a DROP record with a dead letter without a key")
    groupmutators.drop(ks, key, stream, group, entry_id, records.REASONS[reason], letter)


def _apply_destroy(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, end = split_names(batch, at + records.IDS_HEAD.size, klen, glen)
    if end != stop:
        raise CorruptError("a DESTROY record with inconsistent lengths")
    stream, _ = need_group(ks, key, name)
    groupmutators.destroy_group(ks, key, stream, name)


def _apply_xgroup(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, raw, read, flags = records.XGROUP_HEAD.unpack_from(batch, at)
    key, name, end = split_names(batch, at + records.XGROUP_HEAD.size, klen, glen)
    if end != stop:
        raise CorruptError("an XGROUP record with inconsistent lengths")
    offset, entries_read = int.from_bytes(raw, "big"), entries_read_of(read)
    stream = stream_at(ks, key)
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
    check_times(now)
    key, name, start = split_names(batch, at + records.CONSUMER_HEAD.size, klen, glen)
    stream, group = need_group(ks, key, name)
    consumer = part(batch, start, stop)
    if consumer in group.consumers or number != group.free_number():
        raise CorruptError("a CONSUMER record with a name or a number that is taken")
    groupmutators.consumer(ks, key, stream, group, consumer, now)


def _apply_own(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    (_, _, klen, glen, number, given, raw, read, last, now, count, new, again, gone) = records.OWN_HEAD.unpack_from(
        batch, at
    )
    check_times(last, now, count)
    key, name, start = split_names(batch, at + records.OWN_HEAD.size, klen, glen)
    raws = split_ids(part(batch, start, stop))
    stream, group = need_group(ks, key, name)
    consumer, offset, entries_read = group.owners.get(number), int.from_bytes(raw, "big"), entries_read_of(read)
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
    key, name, end = split_names(batch, at + records.FORGET_HEAD.size, klen, glen)
    stream, group = need_group(ks, key, name)
    consumer = group.owners.get(number)
    if end != stop or consumer is None:
        raise CorruptError("a FORGET record for a consumer that does not exist")
    groupmutators.forget_consumer(ks, key, stream, group, consumer)


APPLY: Final[Appliers] = {
    records.GROUP: _apply_group,
    records.DELIVER: _apply_deliver,
    records.ACK: _apply_ack,
    records.DUE: _apply_due,
    records.DROP: _apply_drop,
    records.DESTROY: _apply_destroy,
    records.XGROUP: _apply_xgroup,
    records.CONSUMER: _apply_consumer,
    records.OWN: _apply_own,
    records.FORGET: _apply_forget,
}
