"""Who owns messages of a pending list (``pending``): the runs of consumers by owner and by their last delivery.

Messages that TREAD delivered have no owner and are not in here; nor does a list without consumers have an object like
this. Rows of bytes in two ordered sets (``sortedrows``), one in each for every run that is OWNED::

    _by_owner  | owner u32 | low 16 |
    _by_last   | last u64  | low 16 |    ``last`` + 2**63 if the run has an owner

Nobody (0) owns what was given back without being acknowledged. Such messages are for whoever asks first, so they come
before all others; ``last`` then is not a delivery but where they stand among each other.
"""

from __future__ import annotations

from typing import Final

from storage.groups.pendingformat import ID_SIZE, OWNED
from storage.groups.ranges import pack_time, touched
from storage.model.sortedrows import SortedRows

TAKEN: Final = 1 << 63  # added to ``last`` of messages that have an owner
BY_OWNER: Final = 4 + ID_SIZE
BY_LAST: Final = 8 + ID_SIZE
NOBODY: Final = bytes(4)
_TAKEN: Final = [bytes([byte | 0x80]) for byte in range(256)]  # the first byte of a time, with TAKEN added
COUNT_BYTES: Final = 150  # memory of an owner's count


class Owned:
    """The runs of one pending list that are OWNED, and how many messages each owner has."""

    __slots__ = ("_by_last", "_by_owner", "counts", "passed")

    def __init__(self) -> None:
        self._by_owner = SortedRows(BY_OWNER, BY_OWNER)
        self._by_last = SortedRows(BY_LAST, BY_LAST)
        self.counts: dict[int, int] = {}  # messages by owner; none is 0
        # As a row of _by_last, but with a message's own ID: the entries of the messages up to it are all gone. Not
        # stored; empty if nobody has looked. Whoever looks for idle messages begins behind it.
        self.passed = b""

    # -- changes ---------------------------------------------------------------------------------------------
    def put(self, run: bytes) -> None:
        self._by_owner.insert(run[52:56] + run[:ID_SIZE])
        self._by_last.insert(moment(run) + run[:ID_SIZE])

    def begin(self, run: bytes) -> None:
        """put() the first one."""
        self.passed = b""
        self._by_owner.begin(run[52:56] + run[:ID_SIZE])
        self._by_last.begin(moment(run) + run[:ID_SIZE])

    def clear(self) -> None:
        """All runs are gone, and no owner has a message."""
        self.passed = b""
        self._by_owner.clear()
        self._by_last.clear()
        self.counts.clear()

    def take(self, run: bytes) -> None:
        self._by_owner.delete(run[52:56] + run[:ID_SIZE])
        self._by_last.delete(moment(run) + run[:ID_SIZE])

    def exchange(self, taken: list[bytes], put: list[bytes]) -> None:
        """Remove runs, and add others in their places. Those of them that are not OWNED don't matter."""
        old = [run for run in taken if run[-1] == OWNED]
        new = [run for run in put if run[-1] == OWNED]
        self._by_owner.exchange(
            sorted([run[52:56] + run[:ID_SIZE] for run in old]), sorted([run[52:56] + run[:ID_SIZE] for run in new])
        )
        self._by_last.exchange(
            sorted([moment(run) + run[:ID_SIZE] for run in old]), sorted([moment(run) + run[:ID_SIZE] for run in new])
        )

    def count(self, owner: int, more: int) -> None:
        """The owner has so many messages more, or less."""
        number = self.counts.get(owner, 0) + more
        if number:
            self.counts[owner] = number
        else:
            self.counts.pop(owner, None)

    def lose(self, runs: SortedRows, raws: list[bytes]) -> None:
        """Messages (IDs, ascending, all in ``runs``) will no longer be their owners'."""
        for run, _, start, stop in touched(runs, raws):
            if run[-1] == OWNED:
                self.count(owner_of(run), start - stop)

    def note(self, owner: int, last: int) -> None:
        """Messages become an owner's, delivered at ``last``: they may come before ``passed``."""
        if self.passed and pack_time(TAKEN + last if owner else last) <= self.passed[:8]:
            self.passed = b""

    # -- reading ---------------------------------------------------------------------------------------------
    def lows(self, owner: int, start: bytes, limit: int) -> list[bytes]:
        """Where at most ``limit`` runs of an owner begin, from ``start`` on."""
        end = (owner + 1).to_bytes(5, "big")
        rows = self._by_owner.span(owner.to_bytes(4, "big") + start, b"" if end[0] else end[1:], limit)
        return [row[4:] for row in rows]

    def by_last(self, start: bytes, last: int, limit: int) -> list[bytes]:
        """At most ``limit`` rows of _by_last, from ``start`` on, that nobody owns or were delivered up to ``last``."""
        return self._by_last.span(start, pack_time(TAKEN + min(max(last, -1), TAKEN - 2) + 1), limit)

    def begin_of(self, place: bytes) -> bytes:
        """The row of _by_last from whose run on the messages behind ``place`` are: see ``passed``."""
        row = self._by_last.floor(place)
        return row if row[:8] == place[:8] else place

    def newest_of_nobody(self) -> int:
        """The highest ``last`` of what nobody owns; -1 if there is nothing."""
        row = self._by_last.floor(pack_time(TAKEN))
        moment = int.from_bytes(row[:8], "big") if row else TAKEN
        return moment if moment < TAKEN else -1

    def freeze(self) -> Owned:
        """A copy for lows()."""
        other = Owned()
        other._by_owner = self._by_owner.freeze()
        return other

    def fill(self, runs: list[bytes]) -> None:
        """Fill an empty one with runs, which are all OWNED; the counts are the caller's."""
        self._by_owner.fill(b"".join(sorted([run[52:56] + run[:ID_SIZE] for run in runs])))
        self._by_last.fill(b"".join(sorted([moment(run) + run[:ID_SIZE] for run in runs])))

    def memory_bytes(self) -> int:
        return self._by_owner.memory_bytes() + self._by_last.memory_bytes() + COUNT_BYTES * len(self.counts) + 300


def owner_of(run: bytes) -> int:
    return int.from_bytes(run[52:56], "big")


def moment(run: bytes) -> bytes:
    """What the run's row in _by_last begins with."""
    return run[24:32] if run[52:56] == NOBODY else _TAKEN[run[24]] + run[25:32]
