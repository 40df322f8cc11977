"""Hash slots, as in Redis Cluster: the slot of a key, and the servers that share the slots.

A key's slot is the CRC16 (XMODEM) of the key, modulo 16384. If the key contains ``{...}``, only the part between the
first ``{`` and the first ``}`` after it counts, unless that part is empty. Keys with the same hash tag therefore have
the same slot. ``binascii.crc_hqx`` is this CRC in C: a slot costs about half a microsecond, interpreted.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from hashlib import sha1
from typing import Final, NamedTuple

SLOTS: Final = 16384
# The ID of the shard that has all slots, for CLUSTER MYSHARDID. It is the same on all members, before and after a
# failover.
ALL_SLOTS_ID: Final = sha1(b"tidelog 0-16383", usedforsecurity=False).hexdigest()


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


def slot_of(key: bytes) -> int:
    """Return the slot of a key, from 0 to 16383."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def common_slot(keys: Sequence[bytes], slot: int = -1) -> int:
    """Return the slot of the keys, of which there is at least one; -1 if they have different ones.

    ``slot``: the slot that they must have; -1: any. Keys that begin with the hash tag of the first one have the same
    slot. Comparing it takes a third of the time of computing the slot.
    """
    first = keys[0]
    found = slot_of(first)
    if slot not in (-1, found):
        return -1
    if len(keys) == 1:
        return found
    start = first.find(b"{")
    end = first.find(b"}", start + 1) if start >= 0 else -1
    if end > start + 1:
        tag = first[: end + 1]
        others = [key for key in keys if key[: end + 1] != tag]
    else:
        others = [key for key in keys if key != first]
    for key in others:
        if slot_of(key) != found:
            return -1
    return found
