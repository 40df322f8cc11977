"""Delayed entries that were read before their turn, because their node was open.

Entries are delivered in the order of their due times, which is not the order in which they are stored. With a backlog,
many entries of a node are delivered soon after each other. The plan has the nodes of the next entries. When a node is
read for one of them, the others are taken, too, so that each node is read once for a plan.

Rule 1: the entries of all keys together take at most MOST_BYTES. They count in ``pool.bytes`` of their key.
Rule 2: an entry that is removed must be dropped here.
"""

from __future__ import annotations

from typing import Final

from storage.streams.position import StreamPosition
from storage.streams.stream import Stream

MOST_BYTES: Final = 4 << 20
ENTRY_BYTES: Final = 150  # memory of an entry in addition to its bytes
PLANNED_BYTES: Final = 60  # memory of a planned entry

Turn = tuple[int, int]  # when an entry is due by the wall clock (ms), and its ordinal
NO_TURN: Final[Turn] = (-1 << 63, 0)  # before all others


class ReadAhead:
    """The entries of one key."""

    __slots__ = ("_plan", "_wires", "planned", "size", "until")

    def __init__(self) -> None:
        self.until = NO_TURN  # the last planned entry
        self.planned = 0  # entries in the plan
        self.size = 0  # memory of the entries, without the plan
        self._plan: dict[int, list[int]] = {}  # first ordinal of a node -> the entries to take
        self._wires: dict[int, bytes] = {}

    def memory_bytes(self) -> int:
        return self.size + PLANNED_BYTES * self.planned

    def plan(self, entries: Stream, turns: list[Turn]) -> None:
        """Plan the next entries, in order; at least one."""
        self.end_plan()
        self.until = turns[-1]
        for _, ordinal in reversed(turns):  # take() begins at the end
            if ordinal not in self._wires:
                first = entries.node_start(ordinal)
                planned = self._plan.get(first)
                if planned is None:
                    self._plan[first] = [ordinal]
                else:
                    planned.append(ordinal)
                self.planned += 1

    def end_plan(self) -> None:
        """Forget the plan, since there is no backlog, or a new plan."""
        if self.planned:
            self._plan.clear()
        self.planned, self.until = 0, NO_TURN

    def get(self, ordinal: int) -> bytes | None:
        return self._wires.get(ordinal)

    def take(self, entries: Stream, position: StreamPosition) -> None:
        """Add the planned entries of a node while there is room."""
        planned, node = self._plan.get(position.first), position.node
        if planned is None or node is None:
            return
        pool, tombstones = entries.pool, entries.tombstones
        while planned and pool.ahead < MOST_BYTES:
            ordinal = planned.pop()
            self.planned -= 1
            if ordinal >= entries.first_ord and (tombstones is None or not tombstones.has(ordinal)):
                at = ordinal - position.first
                wire = self._wires[ordinal] = node.slice(at, at + 1)
                self.size += len(wire) + ENTRY_BYTES
                pool.ahead += len(wire) + ENTRY_BYTES
        if not planned:
            del self._plan[position.first]

    def drop(self, entries: Stream, ordinals: list[int]) -> None:
        """Drop entries that were removed."""
        if self._wires:
            for ordinal in ordinals:
                wire = self._wires.pop(ordinal, None)
                if wire is not None:
                    self.size -= len(wire) + ENTRY_BYTES
                    entries.pool.ahead -= len(wire) + ENTRY_BYTES

    def clear(self, entries: Stream) -> None:
        """Drop everything."""
        entries.pool.ahead -= self.size
        self.size = 0
        self.end_plan()
        self._wires.clear()
