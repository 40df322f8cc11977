"""Replay: applies records with the mutators that logged them.

Rule 1: replay reads no clock and expires nothing.
Rule 2: replaying a record logs the same record, byte by byte. A replica thus writes its own journal. After a replay
from disk, this log is discarded.
Rule 3: a record that does not fit the state is damaged and raises CorruptError. Replay never guesses.
"""

from __future__ import annotations

from typing import Any, Final

from resp.errors import CorruptError
from storage.keyspace import delaymutators, replaycopies, replaygroups, stagemutators
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.prefetch import appends
from storage.keyspace.replayparts import (
    DAMAGE,
    Appliers,
    check_above,
    check_times,
    need_stream,
    not_above,
    part,
    split_names,
    stream_at,
)
from storage.keyspace.values import String
from storage.model import records
from storage.model.ids import MASK64
from storage.streams import tierafter
from storage.streams.delayed import DelayedEntries
from storage.streams.delayed import split as split_delay
from storage.streams.producers import LONGEST_MS, MOST_IDS
from storage.streams.retention import unpack as unpack_retention
from storage.streams.stream import Stream


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
                    raise not_above(ms, seq)
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
                raise not_above(ms, seq)
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
    stream = stream_at(ks, key) or ks.create_stream(key)
    if not n or (ms, seq) <= (stream.last_ms, stream.last_seq) or seq + n - 1 > MASK64:
        raise not_above(ms, seq)
    ks.append_packed(key, stream, ms, seq, sizes, wire)


def _apply_evict(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, _, ordinal, raw = records.EVICT_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.EVICT_HEAD.size, stop)
    stream = need_stream(ks, key)
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
    check_times(expire)
    ks.set_string(batch[start : start + klen], part(batch, start + klen, stop), expire)


def _apply_expire(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, _, expire = records.KEY_TIME_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.KEY_TIME_HEAD.size, stop)
    if key not in ks.keys:
        raise CorruptError("an EXPIRE record for a key that does not exist")
    check_times(expire)
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
    stream = need_stream(ks, batch[start : start + klen])
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
    stream, last_id, max_deleted = need_stream(ks, key), int.from_bytes(raw, "big"), int.from_bytes(raw_deleted, "big")
    if klen != len(key) or added >> 63 or max_deleted > last_id or (stream.length and last_id < stream.newest_id()):
        raise CorruptError("a SETID record that does not fit its stream")
    ks.set_last_id(key, stream, last_id, added, max_deleted)


def _apply_idempotent(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, plen, ms, seq, now, keep_ms, most = records.IDEMPOTENT_HEAD.unpack_from(batch, at)
    key, producer, start = split_names(batch, at + records.IDEMPOTENT_HEAD.size, klen, plen)
    name = part(batch, start, stop)
    stream, entry_id = need_stream(ks, key), ms << 64 | seq
    check_times(now, keep_ms)
    if not producer or not name or not most or entry_id != stream.last_id:
        raise CorruptError("an IDEMPOTENT record that does not fit its stream")
    ks.add_produced(key, stream, producer, name, entry_id, now, keep_ms, most)


def _apply_idmp(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, keep_ms, most = records.IDMP_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.IDMP_HEAD.size, stop)
    if klen != len(key) or not 0 < keep_ms <= LONGEST_MS or not 0 < most <= MOST_IDS:
        raise CorruptError("an IDMP record that is invalid")
    ks.set_idmp(key, need_stream(ks, key), keep_ms, most)


def _apply_produced(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, now = records.KEY_TIME_HEAD.unpack_from(batch, at)
    key = part(batch, at + records.KEY_TIME_HEAD.size, stop)
    check_times(now)
    if klen != len(key):
        raise CorruptError("a PRODUCED record with inconsistent lengths")
    ks.forget_produced(key, need_stream(ks, key), now)


def _apply_retain(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, raw = batch[start : start + klen], part(batch, start + klen, stop)
    stream = stream_at(ks, key)
    if stream is None and not raw:
        raise CorruptError("a RETAIN record without a policy for a stream that does not exist")
    policy = unpack_retention(raw) if raw else None
    ks.set_retention(key, ks.create_stream(key) if stream is None else stream, policy)


def _apply_tier(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen = records.RENAME_HEAD.unpack_from(batch, at)
    start = at + records.RENAME_HEAD.size
    key, raw = batch[start : start + klen], part(batch, start + klen, stop)
    stream = stream_at(ks, key)
    if stream is None and not raw:
        raise CorruptError("a TIER record without a value for a stream that does not exist")
    ks.set_tier_after(key, ks.create_stream(key) if stream is None else stream, tierafter.unpack(raw) if raw else None)


def _apply_delay(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq = records.APPEND_HEAD.unpack_from(batch, at)
    start = at + records.APPEND_HEAD.size
    key, wire = batch[start : start + klen], part(batch, start + klen, stop)
    stream, found = stream_at(ks, key), split_delay(wire)
    delayed = ks.delayed.get(key)
    check_above(None if delayed is None else delayed.entries, ms, seq)
    if stream is None:
        stream = ks.create_stream(key)
    delaymutators.delay(ks, key, stream, delaymutators.companion(ks, key), ms, seq, wire, found)


def _apply_join(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, ms, seq, now, keep_ms, most, n = records.JOIN_HEAD.unpack_from(batch, at)
    check_times(now, keep_ms)
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
    stream = need_stream(ks, key)
    check_above(stream, ms, seq)
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


def _apply_stage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, nlen, klen, ttl, deadline, n = records.STAGE_HEAD.unpack_from(batch, at)
    check_times(ttl)
    name, key, start = split_names(batch, at + records.STAGE_HEAD.size, nlen, klen)
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
        check_above(stream_at(ks, key), ms, seq)
    stagemutators.publish(ks, body[:flen], epoch, check, names, content, firsts)


def _apply_unstage(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    names, _ = records.unpack_names(batch[at + 5 : stop], 0, -1)
    if stagemutators.unstage(ks, names) != len(names):
        raise CorruptError("an UNSTAGE record for a stage that does not exist")


def _apply_away(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    if stop - at != records.AWAY_RECORD.size:
        raise CorruptError("an AWAY record that is invalid")
    _, _, away = records.AWAY_RECORD.unpack_from(batch, at)
    if abs(away) >> 62:
        raise CorruptError("a record with a time that is out of range")
    ks.set_away(away)


_APPLY: Final[Appliers] = {
    records.RUN: _apply_run,
    records.EVICT: _apply_evict,
    records.DELETE: _apply_delete,
    records.SET: _apply_set,
    records.EXPIRE: _apply_expire,
    records.FLUSH: _apply_flush,
    records.STAGE: _apply_stage,
    records.PUBLISH: _apply_publish,
    records.UNSTAGE: _apply_unstage,
    records.CHECKED: _apply_checked,
    records.PATCH: _apply_patch,
    records.RENAME: _apply_rename,
    records.DELETED: _apply_deleted,
    records.SETID: _apply_set_id,
    records.IDEMPOTENT: _apply_idempotent,
    records.IDMP: _apply_idmp,
    records.PRODUCED: _apply_produced,
    records.RETAIN: _apply_retain,
    records.TIER: _apply_tier,
    records.DELAY: _apply_delay,
    records.JOIN: _apply_join,
    records.CANCEL: _apply_cancel,
    records.AWAY: _apply_away,
    **replaygroups.APPLY,
    **replaycopies.APPLY,
}
KNOWN: Final = frozenset((records.APPEND, *_APPLY))  # kinds of records that can be replayed
