"""Records: the effects of commands as bytes. Journal, recovery and replicas use the same records.

Rule 1: a record is self-contained. IDs, times and evicted borders are explicit, so that it replays to the same state
everywhere.
Rule 2: records describe effects, not commands. A command that changes nothing logs nothing.
Rule 3: numbers are big-endian. Only this module packs and unpacks them, with two exceptions: ``_records.c`` packs
DELIVER, ACK and OWN if it was compiled, because readers of groups wait for these, and ``storage.keyspace.recordheads``
caches the heads of the most frequent records. This module has no state.

A record is

    +------+---------------+-- body -------------------------------------------------------------
    | op u8| body bytes u32|  depends on op, see below; klen, glen ... are lengths of names
    +------+---------------+---------------------------------------------------------------------

    APPEND        klen u32 | ms u64 | seq u64 | key | wire                  one entry
    RUN           klen u32 | ms u64 | seq u64 | n u32 | key | n sizes u32 | wires   a batch of n entries
    EVICT         klen u32 | ord u64 | evicted-to 16 | key                  entries before ordinal ord are evicted
    DELETE        key
    SET           klen u32 | expire u64 | key | value                       expire 0: none
    EXPIRE        klen u32 | expire u64 | key                               expire 0: persist
    FLUSH         (empty)
    GROUP         klen u32 | glen u32 | offset 16 | ttl u64 | deadline u64 | key | group      created or changed
    DELIVER       klen u32 | glen u32 | dlen u32 | offset 16 | now u64 | retry u64 | expire u64 | max u32 | flags u8
                  | new u32 | again u32 | gone u32 | key | group | dead-letter key | IDs 16 each: new, again, gone
    ACK           klen u32 | glen u32 | key | group | IDs
    DUE           klen u32 | glen u32 | due u64 | key | group | IDs
    DROP          klen u32 | glen u32 | dlen u32 | id 16 | reason u8 | ms u64 | seq u64
                  | key | group | dead-letter key | wire                    wire: the dead letter, with the ID ms.seq
    DESTROY       klen u32 | glen u32 | key | group
    STAGE         nlen u32 | klen u32 | ttl u64 | deadline u64 | n u32 | name | key | n sizes u32 | bare entries
                  n is 0 and klen is 0: the stage does not expire any more
    PUBLISH       flen u32 | epoch u64 | stages u32 | streams u32 | fence | stages: nlen u32 | name
                  | streams: klen u32 | ms u64 | seq u64 | key             the first IDs of the stages' entries
    UNSTAGE       stages: nlen u32 | name
    CHECKED       clen u32 | check | the body of PUBLISH                    a publish whose epoch has a check
    PATCH         klen u32 | offset u64 | key | part          a string's bytes from offset on, at most its length
    RENAME        klen u32 | key | new key                    with expiry and groups; replaces a value at the new key
    DELETED       klen u32 | highest 16 | key | ordinals u64 each            deleted one by one; ID of the last one
    SETID         klen u32 | last 16 | added u64 | max-deleted 16 | key
    XGROUP        klen u32 | glen u32 | offset 16 | entries read u64 | flags u8 | key | group   created or moved
    CONSUMER      klen u32 | glen u32 | number u32 | now u64 | key | group | name               a new consumer
    OWN           klen u32 | glen u32 | number u32 | flags u8 | offset 16 | entries read u64 | last u64 | now u64
                  | count u64 | new u32 | again u32 | gone u32 | key | group | IDs 16 each: new, again, gone
    FORGET        klen u32 | glen u32 | number u32 | key | group            a consumer and its messages are removed
    IDEMPOTENT    klen u32 | plen u32 | ms u64 | seq u64 | now u64 | keep ms u64 | most u32 | key | producer | its ID
    IDMP          klen u32 | keep ms u64 | most u32 | key                    XCFGSET
    PRODUCED      klen u32 | now u64 | key                  producers' IDs older than their retention are removed
    RETAIN        klen u32 | key | policy                    see ``storage.streams.retention``; empty: none
    TIER          klen u32 | key | tier-after                see ``storage.streams.tierafter``; empty: as configured
    DELAY         klen u32 | ms u64 | seq u64 | key | entry of the companion    see ``storage.streams.delayed``
    JOIN          klen u32 | ms u64 | seq u64 | now u64 | keep ms u64 | most u32 | n u32 | key
                  | n ordinals u64 | n sizes u32 | entries of the companion     they join their stream from ms.seq on
    CANCEL        klen u32 | ordinal u64 | key | entry of the companion
    AWAY          away i64                                  ms: see served time in ``storage.keyspace.keyspace``
    IMPORTS       the imports in progress                   see ``storage.keyspace.copymutators``, like the next ones
    COPIED        klen u32 | complete u8 | key | metadata of the stream      its copy begins (0) or is complete (1)
    NODE          klen u32 | first ordinal u64 | end u64 | n u32 | key | n ranges of deleted ordinals u64 u64 | blob
    GROUPCOPY     klen u32 | glen u32 | key | group | metadata of the group
    PENDING       klen u32 | glen u32 | dlen u32 | first u64 | due u64 | expire u64 | retry u64 | deliveries u64
                  | most u32 | owner u32 | kind u8 | key | group | dead-letter key | IDs
    PRODUCER      klen u32 | plen u32 | key | producer | dump
    NODEREF       like NODE, with a reference instead of a blob (``storage.nodes.reference``)

``number`` identifies a consumer; 0 in OWN means no owner. Entries read are 2**64 - 1 if they are unknown. The entries
of a RUN have the same millisecond and consecutive sequence numbers from seq on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add
from struct import Struct
from sys import byteorder
from typing import Final

from resp.errors import CorruptError
from storage.model.ids import MASK64, raw_id

APPEND: Final = 1
RUN: Final = 2
EVICT: Final = 3
DELETE: Final = 4
SET: Final = 5
EXPIRE: Final = 6
FLUSH: Final = 7
GROUP: Final = 8
DELIVER: Final = 9
ACK: Final = 10
DUE: Final = 11
DROP: Final = 12
DESTROY: Final = 13
STAGE: Final = 14
PUBLISH: Final = 15
UNSTAGE: Final = 16
CHECKED: Final = 17
PATCH: Final = 18
RENAME: Final = 19
DELETED: Final = 20
SETID: Final = 21
XGROUP: Final = 24
CONSUMER: Final = 25
OWN: Final = 26
FORGET: Final = 27
IDEMPOTENT: Final = 22
IDMP: Final = 23
PRODUCED: Final = 28
AWAY: Final = 29
DELAY: Final = 30
JOIN: Final = 31
RETAIN: Final = 32
CANCEL: Final = 33
IMPORTS: Final = 34
COPIED: Final = 35
NODE: Final = 36
GROUPCOPY: Final = 37
PENDING: Final = 38
PRODUCER: Final = 39
TIER: Final = 40
NODEREF: Final = 41

HEAD: Final = Struct(">BI")
APPEND_HEAD: Final = Struct(">BIIQQ")  # APPEND, DELAY
RUN_HEAD: Final = Struct(">BIIQQI")
EVICT_HEAD: Final = Struct(">BIIQ16s")
KEY_TIME_HEAD: Final = Struct(">BIIQ")  # SET, EXPIRE, PRODUCED; PATCH and CANCEL: offset or ordinal
DELETED_HEAD: Final = Struct(">BII16s")
SETID_HEAD: Final = Struct(">BII16sQ16s")
IDEMPOTENT_HEAD: Final = Struct(">BIIIQQQQI")
IDMP_HEAD: Final = Struct(">BIIQI")
JOIN_HEAD: Final = Struct(">BIIQQQQII")
RENAME_HEAD: Final = Struct(">BII")  # RENAME, RETAIN, TIER
GROUP_HEAD: Final = Struct(">BIII16sQQ")
DELIVER_HEAD: Final = Struct(">BIIII16sQQQIBIII")
IDS_HEAD: Final = Struct(">BIII")  # ACK, DESTROY, GROUPCOPY, PRODUCER
DUE_HEAD: Final = Struct(">BIIIQ")
DROP_HEAD: Final = Struct(">BIIII16sBQQ")
STAGE_HEAD: Final = Struct(">BIIIQQI")
PUBLISH_BODY: Final = Struct(">IQII")
XGROUP_HEAD: Final = Struct(">BIII16sQB")
CONSUMER_HEAD: Final = Struct(">BIIIIQ")
OWN_HEAD: Final = Struct(">BIIIIB16sQQQQIII")
FORGET_HEAD: Final = Struct(">BIIII")
AWAY_RECORD: Final = Struct(">BIq")
COPIED_HEAD: Final = Struct(">BIIB")
NODE_HEAD: Final = Struct(">BIIQQI")
PENDING_HEAD: Final = Struct(">BIIIIQQQQQIIB")
BORDERS: Final = Struct(">QQ")
LENGTH: Final = Struct(">I")
FIRST: Final = Struct(">IQQ")

HAS_RETRY: Final = 1  # DELIVER flags: the reader's options include RETRY
HAS_MAX: Final = 2  # ... and MAXDELIVERIES
HAS_DEADLETTER: Final = 4  # ... and DEADLETTER

LONE: Final = 1  # XGROUP flags: the stream is created with the group, and remains without groups and entries

HAS_COUNT: Final = 1  # OWN flags: ``count`` is the number of deliveries
INCREMENT: Final = 2  # ... one is added to the deliveries of pending messages
DECREMENT: Final = 4  # ... or subtracted
QUIET: Final = 8  # with any of these: the consumer does not count as active

UNKNOWN: Final = (1 << 64) - 1  # for entries read

REASONS: Final = ("expired", "maxdeliveries")

_OWN_BODY: Final = OWN_HEAD.size - 5
_pack_own: Final = OWN_HEAD.pack
_IDS_BODY: Final = IDS_HEAD.size - 5
_pack_ids: Final = IDS_HEAD.pack
_EVICT_BODY: Final = EVICT_HEAD.size - 5
_pack_evict: Final = EVICT_HEAD.pack

_c_records: tuple[Callable[..., bytes], Callable[..., bytes], Callable[..., bytes]] | None = None
try:
    from storage.model import _records

    _c_records = _records.deliver, _records.ack, _records.own
except ImportError:  # installed without a C compiler, or run from a checkout
    pass
DELIVER_RECORD: Final[Callable[..., bytes] | None] = None if _c_records is None else _c_records[0]
ACK_RECORD: Final[Callable[..., bytes] | None] = None if _c_records is None else _c_records[1]
OWN_RECORD: Final[Callable[..., bytes] | None] = None if _c_records is None else _c_records[2]


def _named(
    op: int, layout: Struct, names: tuple[bytes, ...], fields: tuple[bytes | int, ...], rest: bytes = b""
) -> bytes:
    """Return a record whose head contains the lengths of the names and then these fields, and ``rest`` at its end."""
    body = b"".join((*names, rest))
    return layout.pack(op, layout.size - HEAD.size + len(body), *map(len, names), *fields) + body


def run(key: bytes, ms: int, seq: int, sizes: array[int], wire: bytes) -> tuple[bytes, ...]:
    """Return a RUN record in parts. ``sizes``: the size of each entry in ``wire``."""
    return *run_head(key, ms, seq, sizes, len(wire)), wire


def run_head(key: bytes, ms: int, seq: int, sizes: array[int], wire_len: int) -> tuple[bytes, bytes, bytes]:
    """Return a RUN record without its entries, which must follow it."""
    size = RUN_HEAD.size - 5 + len(key) + 4 * len(sizes) + wire_len
    return RUN_HEAD.pack(RUN, size, len(key), ms, seq, len(sizes)), key, pack_sizes(sizes)


def evict(key: bytes, ordinal: int, evicted_to: int) -> bytes:
    klen = len(key)
    return _pack_evict(EVICT, _EVICT_BODY + klen, klen, ordinal, evicted_to.to_bytes(16, "big")) + key


def delete(key: bytes) -> bytes:
    return HEAD.pack(DELETE, len(key)) + key


def set_string(key: bytes, value: bytes, expire: int) -> bytes:
    size = KEY_TIME_HEAD.size - 5 + len(key) + len(value)
    return b"".join((KEY_TIME_HEAD.pack(SET, size, len(key), expire), key, value))


def set_strings(keys: list[bytes], values: list[bytes]) -> list[bytes]:
    """Return SET records without expiry, in parts."""
    klens = list(map(len, keys))
    sizes = map(add, map(add, klens, map(len, values)), repeat(KEY_TIME_HEAD.size - 5))
    parts: list[bytes] = [b""] * (3 * len(keys))
    parts[::3] = map(KEY_TIME_HEAD.pack, repeat(SET), sizes, klens, repeat(0))
    parts[1::3] = keys
    parts[2::3] = values
    return parts


def deletes(keys: list[bytes]) -> list[bytes]:
    """Return DELETE records in parts."""
    parts: list[bytes] = [b""] * (2 * len(keys))
    parts[::2] = map(HEAD.pack, repeat(DELETE), map(len, keys))
    parts[1::2] = keys
    return parts


def expire(key: bytes, at: int) -> bytes:
    return KEY_TIME_HEAD.pack(EXPIRE, KEY_TIME_HEAD.size - 5 + len(key), len(key), at) + key


def patch(key: bytes, offset: int, part: bytes) -> bytes:
    return _named(PATCH, KEY_TIME_HEAD, (key,), (offset,), part)


def rename(key: bytes, new: bytes) -> bytes:
    return _named(RENAME, RENAME_HEAD, (key,), (), new)


def deleted(key: bytes, highest: int, ordinals: list[int]) -> bytes:
    column = array("Q", ordinals)
    if byteorder == "little":
        column.byteswap()
    return _named(DELETED, DELETED_HEAD, (key,), (raw_id(highest),), column.tobytes())


def set_last_id(key: bytes, last_id: int, added: int, max_deleted: int) -> bytes:
    return _named(SETID, SETID_HEAD, (key,), (raw_id(last_id), added, raw_id(max_deleted)))


def idempotent(
    key: bytes, producer: bytes, name: bytes, entry_id: int, now: int, keep_ms: int, most: int
) -> bytes:  # fmt: skip
    fields = (entry_id >> 64, entry_id & MASK64, now, keep_ms, most)
    return _named(IDEMPOTENT, IDEMPOTENT_HEAD, (key, producer), fields, name)


def idmp(key: bytes, keep_ms: int, most: int) -> bytes:
    return IDMP_HEAD.pack(IDMP, IDMP_HEAD.size - 5 + len(key), len(key), keep_ms, most) + key


def retain(key: bytes, policy: bytes) -> bytes:
    """Return a RETAIN record. ``policy``: packed; empty: the policy is removed."""
    return _named(RETAIN, RENAME_HEAD, (key,), (), policy)


def tier(key: bytes, after: bytes) -> bytes:
    """Return a TIER record. ``after``: packed; empty: as configured."""
    return _named(TIER, RENAME_HEAD, (key,), (), after)


def delay(key: bytes, ms: int, seq: int, wire: bytes) -> bytes:
    return _named(DELAY, APPEND_HEAD, (key,), (ms, seq), wire)


def join(
    key: bytes, ms: int, seq: int, now: int, keep_ms: int, most: int, ordinals: Sequence[int], wires: Sequence[bytes]
) -> bytes:  # fmt: skip
    """Return a JOIN record. ``ordinals``, ``wires``: of the companion, in the order in which they join their stream."""
    column = array("Q", ordinals)
    if byteorder == "little":
        column.byteswap()
    rest = b"".join((column.tobytes(), pack_sizes(array("I", map(len, wires))), *wires))
    return _named(JOIN, JOIN_HEAD, (key,), (ms, seq, now, keep_ms, most, len(wires)), rest)


def cancel(key: bytes, ordinal: int, wire: bytes) -> bytes:
    return _named(CANCEL, KEY_TIME_HEAD, (key,), (ordinal,), wire)


def produced(key: bytes, now: int) -> bytes:
    return KEY_TIME_HEAD.pack(PRODUCED, KEY_TIME_HEAD.size - 5 + len(key), len(key), now) + key


def flush() -> bytes:
    return HEAD.pack(FLUSH, 0)


def away(ms: int) -> bytes:
    return AWAY_RECORD.pack(AWAY, AWAY_RECORD.size - HEAD.size, ms)


def imports(value: bytes) -> bytes:
    return HEAD.pack(IMPORTS, len(value)) + value


def copied(key: bytes, complete: int, meta: bytes) -> bytes:
    return _named(COPIED, COPIED_HEAD, (key,), (complete,), meta)


def node(key: bytes, first: int, end: int, dead: Sequence[tuple[int, int]], blob: bytes) -> bytes:
    """Return a NODE record. ``dead``: ranges of deleted ordinals, with start and stop. ``blob``: empty if all are."""
    ranges = b"".join([BORDERS.pack(*one) for one in dead])
    return _named(NODE, NODE_HEAD, (key,), (first, end, len(dead)), ranges + blob)


def node_reference(key: bytes, first: int, end: int, dead: Sequence[tuple[int, int]], reference: bytes) -> bytes:
    """Return a NODEREF record. ``dead``: ranges of deleted ordinals, with start and stop."""
    ranges = b"".join([BORDERS.pack(*one) for one in dead])
    return _named(NODEREF, NODE_HEAD, (key,), (first, end, len(dead)), ranges + reference)


def group_copy(key: bytes, name: bytes, meta: bytes) -> bytes:
    return _named(GROUPCOPY, IDS_HEAD, (key, name), (), meta)


def pending(
    key: bytes, name: bytes, deadletter: bytes, times: tuple[int, int, int, int], deliveries: int, most: int,
    owner: int, kind: int, ids: Sequence[bytes],
) -> bytes:  # fmt: skip
    """Return a PENDING record. ``times``: first, due (or the last delivery), expire, and retry."""
    fields = (*times, deliveries, most, owner, kind)
    return _named(PENDING, PENDING_HEAD, (key, name, deadletter), fields, b"".join(ids))


def producer(key: bytes, name: bytes, dump: bytes) -> bytes:
    return _named(PRODUCER, IDS_HEAD, (key, name), (), dump)


def group(key: bytes, name: bytes, offset: int, ttl: int, deadline: int) -> bytes:
    return _named(GROUP, GROUP_HEAD, (key, name), (raw_id(offset), ttl, deadline))


def split_ids(raw: bytes) -> list[bytes]:
    """Split joined IDs into 16 bytes each. Raises CorruptError if the length is not a multiple of 16."""
    if len(raw) % 16:
        raise CorruptError("a record with incomplete IDs")
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


def deliver(
    key: bytes, name: bytes, offset: int, now: int, retry: int, expire_at: int, max_deliveries: int, deadletter: bytes,
    flags: int, new: list[bytes], again: list[bytes], gone: list[bytes],
) -> bytes:  # fmt: skip
    if DELIVER_RECORD is not None and not (deadletter or again or gone):
        return DELIVER_RECORD(key, name, offset, now, retry, expire_at, max_deliveries, flags, new)
    body = b"".join((key, name, deadletter, *new, *again, *gone))
    head = DELIVER_HEAD.pack(
        DELIVER, DELIVER_HEAD.size - 5 + len(body), len(key), len(name), len(deadletter),
        offset.to_bytes(16, "big"), now, retry, expire_at, max_deliveries, flags, len(new), len(again), len(gone),
    )  # fmt: skip
    return head + body


def ack(key: bytes, name: bytes, ids: list[bytes]) -> bytes:
    if ACK_RECORD is not None:
        return ACK_RECORD(key, name, ids)
    raw = ids[0] if len(ids) == 1 else b"".join(ids)
    return b"".join((_pack_ids(ACK, _IDS_BODY + len(key) + len(name) + len(raw), len(key), len(name)), key, name, raw))


def due(key: bytes, name: bytes, at: int, ids: list[bytes]) -> bytes:
    body = b"".join((key, name, *ids))
    return DUE_HEAD.pack(DUE, DUE_HEAD.size - 5 + len(body), len(key), len(name), at) + body


def drop(
    key: bytes, name: bytes, entry_id: int, reason: str, deadletter: bytes, ms: int, seq: int, wire: bytes
) -> bytes:
    """Return a DROP record. ``deadletter``: empty for none; ``ms``, ``seq`` and ``wire`` are then unused."""
    fields = (raw_id(entry_id), REASONS.index(reason), ms, seq)
    return _named(DROP, DROP_HEAD, (key, name, deadletter), fields, wire)


def destroy(key: bytes, name: bytes) -> bytes:
    return _named(DESTROY, IDS_HEAD, (key, name), ())


def xgroup(key: bytes, name: bytes, offset: int, entries_read: int, flags: int) -> bytes:
    """Return an XGROUP record. ``entries_read``: -1 if unknown."""
    return _named(XGROUP, XGROUP_HEAD, (key, name), (raw_id(offset), entries_read & UNKNOWN, flags))


def consumer(key: bytes, group: bytes, number: int, now: int, name: bytes) -> bytes:
    return _named(CONSUMER, CONSUMER_HEAD, (key, group), (number, now), name)


def own(
    key: bytes, group: bytes, number: int, flags: int, offset: int, entries_read: int, last: int, now: int, count: int,
    new: list[bytes], again: list[bytes], gone: list[bytes],
) -> bytes:  # fmt: skip
    """Return an OWN record. ``entries_read``: -1 if unknown."""
    if OWN_RECORD is not None:
        return OWN_RECORD(key, group, number, flags, offset, entries_read, last, now, count, new, again, gone)
    ids = new
    if again or gone:
        ids = [*new, *again, *gone]
    raw = ids[0] if len(ids) == 1 else b"".join(ids)
    klen, glen = len(key), len(group)
    head = _pack_own(
        OWN, _OWN_BODY + klen + glen + len(raw), klen, glen, number, flags, offset.to_bytes(16, "big"),
        entries_read & UNKNOWN, last, now, count, len(new), len(again), len(gone),
    )  # fmt: skip
    return b"".join((head, key, group, raw))


def forget(key: bytes, group: bytes, number: int) -> bytes:
    return _named(FORGET, FORGET_HEAD, (key, group), (number,))


def stage(
    name: bytes, key: bytes, ttl: int, deadline: int, sizes: array[int], bare: bytes
) -> tuple[bytes, ...]:  # fmt: skip
    """Return a STAGE record in parts. ``sizes``: the size of each entry in ``bare``."""
    size = STAGE_HEAD.size - 5 + len(name) + len(key) + 4 * len(sizes) + len(bare)
    head = STAGE_HEAD.pack(STAGE, size, len(name), len(key), ttl, deadline, len(sizes))
    return head, name, key, pack_sizes(sizes), bare


def publish(
    fence: bytes, epoch: int, check: bytes, names: Sequence[bytes], firsts: Sequence[tuple[bytes, int, int]]
) -> bytes:
    """Return a PUBLISH record, or a CHECKED record if ``check`` is not empty."""
    streams = b"".join([FIRST.pack(len(key), ms, seq) + key for key, ms, seq in firsts])
    body = PUBLISH_BODY.pack(len(fence), epoch, len(names), len(firsts))
    body = b"".join((body, fence, _packed_names(names), streams))
    if check:
        return b"".join((HEAD.pack(CHECKED, LENGTH.size + len(check) + len(body)), _packed_names((check,)), body))
    return HEAD.pack(PUBLISH, len(body)) + body


def unstage(names: Sequence[bytes]) -> bytes:
    body = _packed_names(names)
    return HEAD.pack(UNSTAGE, len(body)) + body


def _packed_names(names: Sequence[bytes]) -> bytes:
    return b"".join([LENGTH.pack(len(name)) + name for name in names])


def unpack_names(raw: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Return ``count`` names from offset ``at`` on (-1: all up to the end), and the offset after them.

    Raises CorruptError if a name ends beyond ``raw``.
    """
    names: list[bytes] = []
    if count > 1:  # there can be many thousands, usually of equal length
        (length,) = LENGTH.unpack_from(raw, at)
        same = Struct(f">I{length}s")
        end = at + count * same.size
        if end <= len(raw):
            names = [name for size, name in same.iter_unpack(raw[at:end]) if size == length]
            if len(names) == count:
                return names, end
            names = []
    while len(names) != count and (count >= 0 or at < len(raw)):
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size + length
        if at > len(raw):
            raise CorruptError("a record with a name that ends beyond it")
        names.append(raw[at - length : at])
    return names, at


def unpack_firsts(raw: bytes, at: int, count: int) -> list[tuple[bytes, int, int]]:
    """Return the streams of a PUBLISH record, from offset ``at`` to its end. Raises CorruptError if one is invalid."""
    firsts: list[tuple[bytes, int, int]] = []
    for _ in range(count):
        length, ms, seq = FIRST.unpack_from(raw, at)
        at += FIRST.size + length
        firsts.append((raw[at - length : at], ms, seq))
    if at != len(raw):
        raise CorruptError("a PUBLISH record with inconsistent streams")
    return firsts


def pack_sizes(sizes: array[int]) -> bytes:
    if byteorder == "little":
        sizes = sizes[:]
        sizes.byteswap()
    return sizes.tobytes()


def unpack_ordinals(raw: bytes) -> list[int]:
    """Unpack ordinals. Raises ValueError if the length is not a multiple of 8."""
    ordinals = array("Q", raw)
    if byteorder == "little":
        ordinals.byteswap()
    return ordinals.tolist()


def unpack_sizes(raw: bytes) -> array[int]:
    sizes = array("I", raw)
    if byteorder == "little":
        sizes.byteswap()
    return sizes
