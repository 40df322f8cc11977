"""Hash slots, as in Redis Cluster: the slot of a key, and the servers that share the slots.

A key's slot is the CRC16 (XMODEM) of the key, modulo 16384. If the key contains ``{...}``, only the part between the
first ``{`` and the first ``}`` after it counts, unless that part is empty. Keys with the same hash tag therefore have
the same slot.

In a cluster of several groups, a server serves only some slots. A table of 16384 bytes has a 1 for each of them.

Decision: the slots of a call's keys are compared in C (``_slots.c``) if a C compiler is available. In compiled Python,
the comparison of three keys took 0.9 us, half the time of an MGET in a pipeline of 16. The tables of served slots are
read in C, too.
"""

from __future__ import annotations

from binascii import crc_hqx
from hashlib import sha1
from typing import Any, Final, NamedTuple

try:
    from commands import _slots

    IN_C = True
except ImportError:  # installed without a C compiler, or run from a checkout
    IN_C = False

SLOTS: Final = 16384
# The ID of the shard that has all slots, for CLUSTER MYSHARDID. It is the same on all members, before and after a
# failover.
ALL_SLOTS_ID: Final = sha1(b"tidelog 0-16383", usedforsecurity=False).hexdigest()


ALL_SLOTS: Final = b"\x01" * SLOTS  # the table of a server that serves all slots
NO_SLOTS: Final = bytes(SLOTS)


class ClusterNode(NamedTuple):
    """A server as CLUSTER NODES and related commands show it to one client."""

    id: str  # 40 hex digits
    address: str  # an IP address, or a host name; never empty
    hostname: str  # the announced one; "": none
    endpoint: str  # the one of both to which clients connect; never empty
    port: int  # the port for clients that connect like this one, with or without TLS
    leads: bool
    myself: bool
    online: bool  # connected, as far as this server knows
    offset: int  # log offset


class ClusterShard(NamedTuple):
    """A group of servers as CLUSTER SLOTS and related commands show it to one client."""

    id: str  # 40 hex digits
    epoch: int  # of the server group; 0: it is none
    nodes: list[ClusterNode]  # the leader first; without a leader, the first one is a replica
    slots: list[tuple[int, int]]  # ranges with both ends


def slot_of(key: bytes) -> int:
    """Return the slot of a key, from 0 to 16383."""
    return _slots.slot_of(key) if IN_C else interpreted_slot(key)


def one_slot(words: list[bytes], first: int, step: int) -> int:
    """Return the slot of the keys words[first::step]; -1 if they have different ones, or if there are none."""
    return _slots.one_slot(words, first, step) if IN_C else interpreted_one_slot(words[first::step])


def sole_key(words: list[bytes], keyword: bytes) -> int:
    """Return the position of the key of a call like XREAD ... STREAMS key ID; 0 if the call has several keys, or if
    that is not certain, because another word is equal to the keyword. ``keyword``: in upper case."""
    return _slots.sole_key(words, keyword) if IN_C else interpreted_sole_key(words, keyword)


def unserved(served: bytes, words: list[bytes], first: int, step: int) -> int:
    """Return the slot of the first of the keys words[first::step] that is not served; -1 if there is none. ``step`` 0:
    only words[first] is a key."""
    if IN_C:
        return _slots.unserved(served, words, first, step)
    return interpreted_unserved(served, words[first::step] if step else words[first : first + 1])


def served_calls(served: bytes, calls: list[Any], at: int, stop: int, first: int) -> int:
    """Return the index, at most ``stop``, of the first call from ``at`` on that is not a list, or whose key, which is
    the word ``first``, has a slot that is not served."""
    if IN_C:
        return _slots.served_calls(served, calls, at, stop, first)
    return interpreted_served_calls(served, calls, at, stop, first)


def _tag(key: bytes) -> bytes:
    """Return the beginning of a key up to the end of its hash tag; b"" if it has none."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[: end + 1] if end > start + 1 else b""


def interpreted_slot(key: bytes) -> int:
    """Do the same as slot_of() without C."""
    tag = _tag(key)
    return crc_hqx(tag[tag.find(b"{") + 1 : -1] if tag else key, 0) % SLOTS


def interpreted_one_slot(keys: list[bytes]) -> int:
    """Do the same as one_slot() without C. Keys that begin with the hash tag of the first one have the same slot."""
    if not keys:
        return -1
    slot, tag = interpreted_slot(keys[0]), _tag(keys[0])
    others = [key for key in keys if key[: len(tag)] != tag] if tag else [key for key in keys if key != keys[0]]
    for key in others:
        if interpreted_slot(key) != slot:
            return -1
    return slot


def interpreted_sole_key(words: list[bytes], keyword: bytes) -> int:
    """Do the same as sole_key() without C."""
    found = [at for at in range(1, len(words)) if words[at].upper() == keyword]
    return len(words) - 2 if found == [len(words) - 3] else 0


def interpreted_unserved(served: bytes, keys: list[bytes]) -> int:
    """Do the same as unserved() without C."""
    for key in keys:
        slot = interpreted_slot(key)
        if not served[slot]:
            return slot
    return -1


def interpreted_served_calls(served: bytes, calls: list[Any], at: int, stop: int, first: int) -> int:
    """Do the same as served_calls() without C."""
    while at < min(stop, len(calls)):
        call = calls[at]
        if not isinstance(call, list) or first >= len(call) or not served[interpreted_slot(call[first])]:
            break
        at += 1
    return at
