"""Records: the effects of commands as bytes. Journal, restart and replicas all live on them.

Rule 1: a record is self-contained. IDs, times and evicted borders are explicit, so it replays to the same state
anywhere.
Rule 2: records hold effects, not commands: a command that changes nothing logs nothing.
Rule 3: numbers are big-endian; no other file packs or unpacks them.

A record is

    +------+---------------+-- body -------------------------------------------------------------
    | op u8| body bytes u32|  op by op as below; key and group are in there with u32 lengths
    +------+---------------+---------------------------------------------------------------------

    APPEND        klen u32 | ms u64 | seq u64 | key | wire                  one entry
    RUN           klen u32 | ms u64 | seq u64 | n u32 | key | n sizes u32 | wires   a batch of n entries
    EVICT         klen u32 | ord u64 | evicted-to 16 | key                  entries before ordinal ord are gone
    DELETE        key
    SET           klen u32 | expire u64 | key | value                       expire 0: none
    EXPIRE        klen u32 | expire u64 | key                               expire 0: persist
    FLUSH         (empty)
    GROUP         klen u32 | glen u32 | offset 16 | ttl u64 | deadline u64 | key | group      made or changed
    DELIVER       klen u32 | glen u32 | dlen u32 | offset 16 | now u64 | retry u64 | expire u64 | max u32 | flags u8
                  | new u32 | again u32 | gone u32 | key | group | dead letter key | IDs 16 each: new, again, gone
    ACK           klen u32 | glen u32 | key | group | IDs
    DUE           klen u32 | glen u32 | due u64 | key | group | IDs
    DROP          klen u32 | glen u32 | dlen u32 | id 16 | reason u8 | ms u64 | seq u64
                  | key | group | dead letter key | wire                    wire: the dead letter, with the ID ms.seq
    DESTROY       klen u32 | glen u32 | key | group
    STAGE         nlen u32 | klen u32 | ttl u64 | deadline u64 | n u32 | name | key | n sizes u32 | bare entries
    PUBLISH       flen u32 | epoch u64 | stages u32 | streams u32 | fence | stages: nlen u32 | name
                  | streams: klen u32 | ms u64 | seq u64 | key             the stages' entries, from these IDs on
    UNSTAGE       stages: nlen u32 | name
    CHECKED       clen u32 | check | the body of PUBLISH                    a publish whose epoch has a check
    PATCH         klen u32 | offset u64 | key | part          a string's bytes from offset on, at most its length
    RENAME        klen u32 | key | new key                    with expiry and groups; what was at the new key is gone

RUN is the format's name for what the code calls a batch: entries of one millisecond, whose sequence numbers count up
from seq.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import add
from struct import Struct
from sys import byteorder
from typing import Final

from resp.errors import CorruptError

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

HEAD: Final = Struct(">BI")
APPEND_HEAD: Final = Struct(">BIIQQ")
RUN_HEAD: Final = Struct(">BIIQQI")
EVICT_HEAD: Final = Struct(">BIIQ16s")
KEY_TIME_HEAD: Final = Struct(">BIIQ")  # SET, EXPIRE; PATCH, with the offset as its time
RENAME_HEAD: Final = Struct(">BII")
GROUP_HEAD: Final = Struct(">BIII16sQQ")
DELIVER_HEAD: Final = Struct(">BIIII16sQQQIBIII")
IDS_HEAD: Final = Struct(">BIII")  # ACK, DESTROY
DUE_HEAD: Final = Struct(">BIIIQ")
DROP_HEAD: Final = Struct(">BIIII16sBQQ")
STAGE_HEAD: Final = Struct(">BIIIQQI")
PUBLISH_BODY: Final = Struct(">IQII")
LENGTH: Final = Struct(">I")
FIRST: Final = Struct(">IQQ")

HAS_RETRY: Final = 1  # DELIVER flags: the reader gave RETRY
HAS_MAX: Final = 2  # ... and MAXDELIVERIES
HAS_DEADLETTER: Final = 4  # ... and DEADLETTER

REASONS: Final = ("expired", "maxdeliveries")

_APPEND_BODY: Final = APPEND_HEAD.size - 5
_pack_append: Final = APPEND_HEAD.pack


def append_head(key: bytes, ms: int, seq: int, wire_len: int) -> bytes:
    """An APPEND record up to key and wire, which follow it."""
    klen = len(key)
    return _pack_append(APPEND, _APPEND_BODY + klen + wire_len, klen, ms, seq)


def run(key: bytes, ms: int, seq: int, sizes: array[int], wire: bytes) -> tuple[bytes, ...]:
    """A RUN record, in parts. ``sizes``: bytes of each entry in ``wire``."""
    size = RUN_HEAD.size - 5 + len(key) + 4 * len(sizes) + len(wire)
    return RUN_HEAD.pack(RUN, size, len(key), ms, seq, len(sizes)), key, pack_sizes(sizes), wire


def evict(key: bytes, ordinal: int, evicted_to: int) -> bytes:
    return (
        EVICT_HEAD.pack(EVICT, EVICT_HEAD.size - 5 + len(key), len(key), ordinal, evicted_to.to_bytes(16, "big")) + key
    )


def delete(key: bytes) -> bytes:
    return HEAD.pack(DELETE, len(key)) + key


def set_string(key: bytes, value: bytes, expire: int) -> bytes:
    size = KEY_TIME_HEAD.size - 5 + len(key) + len(value)
    return b"".join((KEY_TIME_HEAD.pack(SET, size, len(key), expire), key, value))


def set_strings(keys: list[bytes], values: list[bytes]) -> list[bytes]:
    """SET records without expiry, in parts."""
    klens = list(map(len, keys))
    sizes = map(add, map(add, klens, map(len, values)), repeat(KEY_TIME_HEAD.size - 5))
    parts: list[bytes] = [b""] * (3 * len(keys))
    parts[::3] = map(KEY_TIME_HEAD.pack, repeat(SET), sizes, klens, repeat(0))
    parts[1::3] = keys
    parts[2::3] = values
    return parts


def deletes(keys: list[bytes]) -> list[bytes]:
    """DELETE records, in parts."""
    parts: list[bytes] = [b""] * (2 * len(keys))
    parts[::2] = map(HEAD.pack, repeat(DELETE), map(len, keys))
    parts[1::2] = keys
    return parts


def expire(key: bytes, at: int) -> bytes:
    return KEY_TIME_HEAD.pack(EXPIRE, KEY_TIME_HEAD.size - 5 + len(key), len(key), at) + key


def patch(key: bytes, offset: int, part: bytes) -> bytes:
    size = KEY_TIME_HEAD.size - 5 + len(key) + len(part)
    return b"".join((KEY_TIME_HEAD.pack(PATCH, size, len(key), offset), key, part))


def rename(key: bytes, new: bytes) -> bytes:
    return RENAME_HEAD.pack(RENAME, RENAME_HEAD.size - 5 + len(key) + len(new), len(key)) + key + new


def flush() -> bytes:
    return HEAD.pack(FLUSH, 0)


def group(key: bytes, name: bytes, offset: int, ttl: int, deadline: int) -> bytes:
    size = GROUP_HEAD.size - 5 + len(key) + len(name)
    head = GROUP_HEAD.pack(GROUP, size, len(key), len(name), offset.to_bytes(16, "big"), ttl, deadline)
    return head + key + name


def split_ids(raw: bytes) -> list[bytes]:
    """Joined IDs, each as its 16 bytes. Raises CorruptError."""
    if len(raw) % 16:
        raise CorruptError("a record whose IDs don't add up")
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


def deliver(
    key: bytes, name: bytes, offset: int, now: int, retry: int, expire_at: int, max_deliveries: int, deadletter: bytes,
    flags: int, new: list[bytes], again: list[bytes], gone: list[bytes],
) -> bytes:  # fmt: skip
    body = b"".join((key, name, deadletter, *new, *again, *gone))
    head = DELIVER_HEAD.pack(
        DELIVER, DELIVER_HEAD.size - 5 + len(body), len(key), len(name), len(deadletter),
        offset.to_bytes(16, "big"), now, retry, expire_at, max_deliveries, flags, len(new), len(again), len(gone),
    )  # fmt: skip
    return head + body


def ack(key: bytes, name: bytes, ids: list[bytes]) -> bytes:
    body = b"".join((key, name, *ids))
    return IDS_HEAD.pack(ACK, IDS_HEAD.size - 5 + len(body), len(key), len(name)) + body


def due(key: bytes, name: bytes, at: int, ids: list[bytes]) -> bytes:
    body = b"".join((key, name, *ids))
    return DUE_HEAD.pack(DUE, DUE_HEAD.size - 5 + len(body), len(key), len(name), at) + body


def drop(
    key: bytes, name: bytes, entry_id: int, reason: str, deadletter: bytes, ms: int, seq: int, wire: bytes
) -> bytes:
    """``deadletter`` is empty for none; ``ms``, ``seq`` and ``wire`` then have no meaning."""
    body = b"".join((key, name, deadletter, wire))
    head = DROP_HEAD.pack(
        DROP, DROP_HEAD.size - 5 + len(body), len(key), len(name), len(deadletter), entry_id.to_bytes(16, "big"),
        REASONS.index(reason), ms, seq,
    )  # fmt: skip
    return head + body


def destroy(key: bytes, name: bytes) -> bytes:
    return IDS_HEAD.pack(DESTROY, IDS_HEAD.size - 5 + len(key) + len(name), len(key), len(name)) + key + name


def stage(
    name: bytes, key: bytes, ttl: int, deadline: int, sizes: array[int], bare: bytes
) -> tuple[bytes, ...]:  # fmt: skip
    """A STAGE record, in parts. ``sizes``: bytes of each entry in ``bare``."""
    size = STAGE_HEAD.size - 5 + len(name) + len(key) + 4 * len(sizes) + len(bare)
    head = STAGE_HEAD.pack(STAGE, size, len(name), len(key), ttl, deadline, len(sizes))
    return head, name, key, pack_sizes(sizes), bare


def publish(
    fence: bytes, epoch: int, check: bytes, names: Sequence[bytes], firsts: Sequence[tuple[bytes, int, int]]
) -> bytes:
    """A PUBLISH record, or a CHECKED one unless ``check`` is empty."""
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
    """``count`` names from offset ``at`` on (-1: all to the end), and the offset after them. Raises CorruptError."""
    names: list[bytes] = []
    if count > 1:  # there may be many thousand, and usually they are equally long
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
    """The streams of a PUBLISH record, from offset ``at`` to its end. Raises CorruptError."""
    firsts: list[tuple[bytes, int, int]] = []
    for _ in range(count):
        length, ms, seq = FIRST.unpack_from(raw, at)
        at += FIRST.size + length
        firsts.append((raw[at - length : at], ms, seq))
    if at != len(raw):
        raise CorruptError("a PUBLISH record whose streams don't add up")
    return firsts


def pack_sizes(sizes: array[int]) -> bytes:
    if byteorder == "little":
        sizes = sizes[:]
        sizes.byteswap()
    return sizes.tobytes()


def unpack_sizes(raw: bytes) -> array[int]:
    sizes = array("I", raw)
    if byteorder == "little":
        sizes.byteswap()
    return sizes
