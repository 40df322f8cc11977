"""The retention policy of a stream: what the leader evicts without a command.

    0     1       2         10       18        26
    +-----+-------+---------+--------+---------+-------+
    | ver | flags | count   | age ms | bytes   | limit |
    +-----+-------+---------+--------+---------+-------+
            flags  1: GROUPS, 2: EXACT

Numbers are big-endian, u64; 0: there is no such limit.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from resp.errors import CorruptError

_FORM: Final = Struct(">BBQQQQ")
SIZE: Final = _FORM.size
_VERSION: Final = 1
_GROUPS: Final = 1
_EXACT: Final = 2
MOST: Final = (1 << 62) - 1  # the largest number in a policy
NO_CHECK: Final = MOST  # as the length from which on a policy is checked: appends do not cause a check


class RetentionPolicy:
    """A policy. It is never changed; a stream gets another one. Every number is 0 if there is no such limit."""

    __slots__ = ("age_ms", "count", "exact", "groups", "limit", "size")

    def __init__(self, count: int, age_ms: int, size: int, groups: bool, limit: int, exact: bool) -> None:
        self.count = count  # entries to retain
        self.age_ms = age_ms  # ms for which an entry is retained
        self.size = size  # bytes to retain
        self.groups = groups  # retain entries that some group needs, up to ``limit`` entries
        self.limit = limit
        self.exact = exact  # evict single entries, not only whole nodes

    def words(self) -> bytes:
        """Return the arguments of TCFG RETAIN that set this policy."""
        found: list[bytes] = []
        if self.count:
            found.append(b"COUNT %d" % self.count)
        if self.age_ms:
            found.append(b"AGE %d" % self.age_ms)
        if self.size:
            found.append(b"BYTES %d" % self.size)
        if self.groups:
            found.append(b"GROUPS LIMIT %d" % self.limit if self.limit else b"GROUPS")
        found.append(b"EXACT" if self.exact else b"~")
        return b" ".join(found)

    def pack(self) -> bytes:
        flags = (_GROUPS if self.groups else 0) | (_EXACT if self.exact else 0)
        return _FORM.pack(_VERSION, flags, self.count, self.age_ms, self.size, self.limit)


def unpack(raw: bytes) -> RetentionPolicy:
    """Return the policy of pack(). Raises CorruptError if it is damaged or cannot be set."""
    if len(raw) != SIZE or raw[0] != _VERSION:
        raise CorruptError("a retention policy that is damaged, or of a newer tidelog")
    _, flags, count, age_ms, size, limit = _FORM.unpack(raw)
    groups = bool(flags & _GROUPS)
    if (
        flags > _GROUPS | _EXACT
        or not (count or age_ms or size)
        or (limit and not groups)
        or max(count, age_ms, size, limit) > MOST
        or (limit and count and limit < count)
    ):
        raise CorruptError("a retention policy that is invalid")
    return RetentionPolicy(count, age_ms, size, groups, limit, bool(flags & _EXACT))
