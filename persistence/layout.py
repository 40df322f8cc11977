"""The entries of the store: their keys and values.

    db "meta"     b"offset"  -> crc | log offset up to which the store is complete u64    b"next_sid" -> crc | u64
                  b"content" -> crc | numbers of entries, and their sums: see ``checksums``
                  b"nodes"   -> crc | u64: the highest version of a node, if it is not 1
                  b"away"    -> crc | i64: Keyspace.away as of that offset, if it was ever not 0
                  b"imports" -> crc | Keyspace.imports as of that offset, if it was ever not empty
    db "nodes"    sid u64 | first ordinal u64 | first ID 16  ->  a blob, which has its own crc (storage.nodes.node)
    db "streams"  sid u64              ->  crc | expiry u64 | nodes u64 | sum of nodes u64 | key length u32 | key | meta
    db "groups"   sid u64 | short(name)  ->  crc | name length u32 | meta length u32 | name | meta | pending list
    db "strings"  short(key)           ->  crc | expiry u64 | key length u32 | key | value
    db "stages"   sid u64 | 0 u32      ->  crc | ttl u64 | deadline u64 | pieces u32 | name
                  sid u64 | n u32      ->  crc | key length u32 | entries u32 | key | sizes u32 each | bare entries
    db "fences"   short(name)          ->  crc | epoch u64 | name
                                       or  crc | epoch u64 with its highest bit set | check length u8 | check | name
    db "marks"      sid u64 | chunk u64    ->  crc | container: see storage.model.tombstones
    db "producers"  sid u64 | short(name)  ->  crc | name length u32 | name | dump

All numbers are big-endian, so that LMDB's order of keys is the order of ordinals. short(x) is a byte 0 and x or, if
that is too long for an LMDB key, a byte 1 and the SHA-256 of x. Expiries, ttls, epochs, and sids are below 2**63. crc
is the crc32 of the key and the rest of the value, u32. "nodes" and "sum of nodes" are the number of the stream's node
keys and the sum of their crc32's (mod 2**64), so that a lost or changed key is detected at the start, which reads only
keys. The pieces of a stage are numbered from 1. "marks" contains tombstones.

The first stores had no stages and no fences. "marks" and "producers" are created when they, or metadata of version 2,
are first written. Earlier versions read a store without them and refuse a store with them by name. The same applies to
unknown names in "meta": b"nodes" is written with the first coded node (storage.nodes.coded), and again with the first
reference, which replaces a node that is only in the object store (storage.nodes.reference), b"away" with the first
shift of served time, b"imports" when slots with keys first move to this group. All other databases exist from the
beginning.

The delayed entries of a key (storage.streams.delayed) are a stream with the same key, whose meta begins with a byte 4:
earlier versions refuse it. Its groups are the parts of the index (storage.streams.indexlog).

A node ends at or before the start of the next one, so that nodes that end at or before the stream's first_ord are known
to be evicted without being read. All ordinals between two nodes have tombstones: a node without living entries is not
stored. Deleted entries of a node may have lost their bytes (storage.nodes.compaction). The last node of a stream may be
its active node, stored uncompressed; a later checkpoint overwrites it.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from zlib import crc32

U64 = Struct(">Q")
I64 = Struct(">q")
CRC = Struct(">I")
NODE_KEY = Struct(">QQ16s")
MARKS_KEY = Struct(">QQ")
STREAM = Struct(">QQQI")
STRING = Struct(">QI")
STAGE_KEY = Struct(">QI")
STAGE = Struct(">QQI")
PIECE = Struct(">II")
GROUP = Struct(">II")
PRODUCER = Struct(">I")
HAS_CHECK = 1 << 63  # flag in the epoch of a fence, which is always below it
META_KEYS = (b"away", b"content", b"imports", b"next_sid", b"nodes", b"offset")
IMPORTS_FORMAT = 7  # the format that a server must know to read a store with b"imports" (replication.formats)
TIERED_FORMAT = 8  # and one with references
LOCAL_FORMAT = 9  # and one with streams that have their own tier-after
CODED = 2  # the version of coded nodes
TIERED = 3  # the version of references; the highest one that this version of tidelog can read


def short(name: bytes) -> bytes:
    return b"\0" + name if len(name) <= 400 else b"\1" + sha256(name).digest()


def signed(key: bytes, *parts: bytes) -> bytes:
    """Return the parts as one value that begins with the crc of key and parts."""
    value = b"".join(parts)
    return CRC.pack(crc32(value, crc32(key))) + value


def pack_fence(name: bytes, epoch: int, check: bytes) -> bytes:
    """Return the value of a fence without its crc. ``check``: empty if there is none."""
    if not check:
        return U64.pack(epoch) + name
    return U64.pack(epoch | HAS_CHECK) + bytes((len(check),)) + check + name


def unpack_fence(value: bytes) -> tuple[bytes, int, bytes]:
    """Return name, epoch, and check (empty: none) of a fence's value."""
    (epoch,) = U64.unpack_from(value, CRC.size)
    at = CRC.size + U64.size
    if not epoch & HAS_CHECK:
        return value[at:], epoch, b""
    start = at + 1
    end = start + value[at]
    return value[end:], epoch ^ HAS_CHECK, value[start:end]
