"""The slots of keys, and the members of a cluster that serve them.

The slot of a key is that of Redis Cluster: CRC16 (XMODEM) of the key modulo 16384. If the key contains ``{...}``, only
the part between the first ``{`` and the first ``}`` after it counts, unless that part is empty.

``SlotOwners`` is read from CLUSTER SLOTS, with the leaders only:

    [[0, 8191, [b"10.0.0.1", 7000, b"<id>", ...], <replica>, ...], [8192, 16383, [b"10.0.0.2", 7000, ...]], ...]
"""

from __future__ import annotations

from array import array
from binascii import crc_hqx
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple

from tidelog.transport.call import Value, plain

SLOTS: Final = 16384
UNASSIGNED: Final = -1
#: The calls with whose replies ``of_another_group`` is called.
OWNERS: Final = (plain("CLUSTER", "MYID"), plain("CLUSTER", "SLOTS"))


class MemberAddress(NamedTuple):
    """The address of a member, as the cluster announces it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def key_bytes(key: Value) -> bytes:
    """Return a key as it is sent."""
    if isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else str(key).encode()


def slot_of(key: Value) -> int:
    """Return the slot of a key, from 0 to 16383."""
    raw = key_bytes(key)
    start = raw.find(b"{")
    if start >= 0:
        end = raw.find(b"}", start + 1)
        if end > start + 1:
            raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def hash_tag(key: str) -> str:
    """Return a hash tag, with its braces, that gives other keys the slot of this key.

    >>> f"claim:{hash_tag('orders:3')}"
    'claim:{orders:3}'

    It contains the tag of the key, or the key itself. A key that can't be in braces gets a number with the same slot.
    """
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    if end > start + 1:
        return key[start : end + 1]
    return f"{{{key}}}" if key and "}" not in key else tag_of_slot(slot_of(key))


@lru_cache(maxsize=1024)
def tag_of_slot(slot: int) -> str:
    """Return a hash tag with this slot: the first number in braces. Raises ValueError for an invalid slot."""
    if not 0 <= slot < SLOTS:
        raise ValueError(f"slot {slot}")
    return next(tag for number in count() if slot_of(tag := f"{{{number}}}") == slot)


class SlotOwners:
    """The leader of each slot. Threads may share it: each change is one assignment."""

    def __init__(self, reply: Sequence[Any], asked: MemberAddress) -> None:
        """Read the reply of CLUSTER SLOTS; ``asked`` is the member that sent it.

        Raises ValueError, TypeError, or IndexError for a reply of another form.
        """
        self.leaders: list[MemberAddress] = []
        self._owners = array("h", [UNASSIGNED]) * SLOTS  # indexes of ``leaders``
        for first, last, leader, *_ in reply:
            at = self._index(member_at(leader[0], leader[1], asked))
            if not 0 <= first <= last < SLOTS:
                raise ValueError(f"slots {first} to {last}")
            self._owners[first : last + 1] = array("h", [at]) * (last + 1 - first)

    def owner(self, slot: int) -> MemberAddress | None:
        """Return the leader that serves a slot; None if the slot is unassigned."""
        at = self._owners[slot]
        return self.leaders[at] if at >= 0 else None

    @property
    def complete(self) -> bool:
        """Whether each slot has a leader. A member omits the slots of a group whose leader it does not know."""
        return UNASSIGNED not in self._owners

    def move(self, slot: int, member: MemberAddress) -> None:
        """Record the owner of a slot that a redirection named."""
        self._owners[slot] = self._index(member)

    def _index(self, member: MemberAddress) -> int:
        if member not in self.leaders:
            self.leaders.append(member)
        return self.leaders.index(member)


def member_at(host: bytes | str | None, port: int, asked: MemberAddress) -> MemberAddress:
    """Return a member from a reply. Without a host, it is the host of the member that replied, as in Redis."""
    name = host.decode("utf-8", "surrogateescape") if isinstance(host, bytes) else host
    return MemberAddress(name if name and name != "?" else asked.host, int(port))


def other_groups(own: Any, slots: Any) -> bool:
    """Return whether groups other than that of a server have slots. Then the server's group can even have none.

    ``own`` and ``slots`` are its replies to OWNERS. If they are errors, the result is False.
    """
    try:
        return isinstance(own, bytes) and any(own not in [node[2] for node in nodes] for _, _, *nodes in slots)
    except (TypeError, ValueError, IndexError):
        return False


def of_another_group(moved: str, own: Any, slots: Any) -> bool:
    """Return whether a MOVED reply names the leader of another group, not that of a replica's own group.

    ``own`` and ``slots`` are replies of the same server to OWNERS. If they are errors, the result is False.
    """
    try:
        slot = int(moved.split()[1])
        nodes = next(nodes for first, last, *nodes in slots if first <= slot <= last)
        return isinstance(own, bytes) and own not in [node[2] for node in nodes]
    except (StopIteration, TypeError, ValueError, IndexError):
        return False
