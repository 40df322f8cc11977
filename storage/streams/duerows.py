"""The due times of one clock, in order, without those of entries that cannot be delivered for now.

Rule 1: entries in damaged nodes are *passed*: they remain, but due() continues after them. Thousands of them therefore
neither hide later entries nor are examined in each step. reset() includes them again, when a node was repaired.
Rule 2: an entry that is added before the position of the last passed one is remembered until it is delivered.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from storage.model.sortedrows import SortedRows

ROW: Final = Struct(">QQ")  # due time in ms, ordinal
MOST_EARLY: Final = 1000  # rows added before passed ones that are remembered; with more, the passed ones are included


class DueRows:
    """Rows of due times and ordinals."""

    __slots__ = ("_early", "_since", "rows")

    def __init__(self) -> None:
        self.rows = SortedRows(ROW.size, ROW.size)  # all of them
        self._since = b""  # the row after the last one that was passed
        self._early: list[bytes] = []  # rows before it that are not passed; some may be removed since

    def insert(self, row: bytes) -> None:
        self.rows.insert(row)
        if row < self._since:
            self._early.append(row)
            if len(self._early) > MOST_EARLY:
                self.reset()

    def first(self) -> int | None:
        """Return the earliest due time (ms) that is not passed; None if there is none."""
        early = self._living()
        if early:
            row = early[0]
        else:
            row = self.rows.above(self._since, True) if self._since else self.rows.first()
        return int.from_bytes(row[:8], "big") if row else None

    def due(self, until: int, limit: int) -> list[tuple[int, int]]:
        """Return due times and ordinals of entries that are due at ``until`` or earlier and not passed, in order."""
        end = ROW.pack(until + 1, 0)
        found = [row for row in self._living() if row < end]
        found += self.rows.span(self._since, end, limit - len(found)) if self._since < end else []
        return [ROW.unpack(row) for row in found[:limit]]

    def _living(self) -> list[bytes]:
        """Return the rows before the passed ones, in order."""
        if self._early:
            self._early = sorted(row for row in self._early if self.rows.get(row))
        return self._early

    def pass_over(self, due: int, ordinal: int) -> None:
        """Pass an entry. Those before it must be passed or removed, except the ones that were added since."""
        row = ROW.pack(due, ordinal)
        if row >= self._since:
            self._since = ROW.pack(due, ordinal + 1)
        elif row in self._early:
            self._early.remove(row)

    def reset(self) -> None:
        """Pass nothing."""
        self._since, self._early = b"", []
