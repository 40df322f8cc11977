"""Delayed entries that were read before their turn, since their node was open.

Entries are delivered in the order of their due times, which is not the order in which they are stored. With a backlog,
many of the entries of a node are delivered soon after each other. The plan has the nodes of the next entries; when a
node is read for one of them, the others are taken, too. So that each node is read once for a plan.

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


class ReadAhead:
    """The entries of one key."""

    __slots__ = ("_plan", "_wires", "planned", "size", "until")

    def __init__(self) -> None:
        self.until: Turn = (0, 0)  # the last planned entry
        self.planned = 0  # entries in the plan
        self.size = 0  # memory of the entries, without the plan
        self._plan: dict[int, list[int]] = {}  # first ordinal of a node -> the entries to take
        self._wires: dict[int, bytes] = {}

    def memory_bytes(self) -> int:
        return self.size + PLANNED_BYTES * self.planned

    def plan(self, entries: Stream, turns: list[Turn]) -> None:
        """Plan the next entries, in order; at least one."""
        self._plan.clear()
        self.planned = len(turns)
        self.until = turns[-1]
        for _, ordinal in turns:
            if ordinal not in self._wires:
                first = entries.node_start(ordinal)
                planned = self._plan.get(first)
                if planned is None:
                    self._plan[first] = [ordinal]
                else:
                    planned.append(ordinal)

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
        self.planned = self.size = 0
        self._plan.clear()
        self._wires.clear()
