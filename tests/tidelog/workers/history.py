"""What happened to events, in the order in which it happened, and whether that is what workers promise.

Workers and the test write lines to one file, each by one write() to a descriptor that appends. So the order of the
lines is the order of the writes, whatever process wrote them:

    b <partition> <key> <id> <epoch> <pid>    a call of the function begins
    e <partition> <key> <id> <epoch> <pid>    it is through, and returns next
    a <partition> <id>                        everything before this ID was seen to be acknowledged

A *line of events* is a partition with ordering "partition", a key of a partition with ordering "key". Of each one:

Rule 1, fencing: epochs of a partition never go back. A call that begins under an epoch after a call under a higher one
        is *late*. Each pause of a process may cause one, since it may fall between the last look at the lease and the
        first line of the function. Late calls count for nothing in what follows.
Rule 2, within an epoch: calls are of the same event (after a failure) or of the next event of the line. The next one
        begins after the one before it is through.
Rule 3, a new epoch begins with an event that is not behind the first one that nobody was through with: nothing is left
        out. What was finished and not acknowledged may come again.
Rule 4: nothing is begun that was seen to be acknowledged before.
Rule 5: nothing is acknowledged that nobody is through with.

With ordering "none" rules 1 to 4 don't apply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Id = tuple[int, int]


def id_of(text: str) -> Id:
    ms, _, seq = text.partition(".")
    return int(ms), int(seq)


@dataclass
class Line:
    """One line of events, and how far it is."""

    ids: Sequence[Id]  # all of them, in their order
    epoch: int = 0
    at: int = -1  # the event that was begun last under this epoch
    through: bool = True  # whether it was finished


class History:
    """Checks lines. ``streams``: for each partition, the keys and IDs of its entries, in their order."""

    def __init__(self, streams: Mapping[int, Sequence[tuple[str, Id]]], ordering: str, pauses: int) -> None:
        self.wrong: list[str] = []
        self.late: list[str] = []
        self.finished: set[tuple[int, Id]] = set()
        self.begun = 0
        self._ordering = ordering
        self._pauses = pauses
        self._streams = streams
        self._epochs: dict[int, int] = defaultdict(int)  # by partition: the highest under which a call began
        self._acknowledged: dict[int, Id] = {}  # by partition: everything before it is
        self._checked: dict[int, int] = defaultdict(int)  # by partition: so many entries were looked at for rule 5
        ids: dict[tuple[int, str], list[Id]] = defaultdict(list)
        for partition, entries in streams.items():
            for key, entry_id in entries:
                ids[self._name(partition, key)].append(entry_id)
        self._lines = {name: Line(each) for name, each in ids.items()}
        self._first: dict[tuple[int, str], int] = defaultdict(int)  # the first of each line nobody was through with

    def _name(self, partition: int, key: str) -> tuple[int, str]:
        return partition, key if self._ordering == "key" else ""

    def check(self, lines: Iterable[str]) -> None:
        """Judge lines; what is against the rules is in ``wrong``."""
        for number, line in enumerate(lines, 1):
            kind, *words = line.split()
            if kind == "a":
                self._acknowledge(f"{number}: {line}", int(words[0]), id_of(words[1]))
                continue
            partition, key, entry_id, epoch = int(words[0]), words[1], id_of(words[2]), int(words[3])
            if kind == "e":
                self._end(partition, key, entry_id, epoch)
            else:
                self.begun += 1
                if self._ordering != "none":
                    self._begin(f"{number}: {line}", partition, key, entry_id, epoch)
        if len(self.late) > self._pauses:
            self.wrong.append(f"{len(self.late)} late calls after {self._pauses} pauses: {self.late[:5]}")

    def unfinished(self) -> list[tuple[int, Id]]:
        """Events that nobody was through with."""
        return [
            (partition, entry_id)
            for partition, entries in self._streams.items()
            for _, entry_id in entries
            if (partition, entry_id) not in self.finished
        ]

    def _begin(self, where: str, partition: int, key: str, entry_id: Id, epoch: int) -> None:
        if epoch < self._epochs[partition]:
            self.late.append(where)
            return
        self._epochs[partition] = epoch
        if entry_id < self._acknowledged.get(partition, (0, 0)):
            self.wrong.append(f"rule 4, it was acknowledged before {where}")
        name = self._name(partition, key)
        line = self._lines[name]
        at = _index(line.ids, entry_id)
        if epoch > line.epoch:
            if at > self._unfinished_from(name):
                self.wrong.append(f"rule 3, the {at - self._unfinished_from(name)} before it were left out {where}")
        elif at != line.at:
            if at != line.at + 1:
                self.wrong.append(f"rule 2, {at - line.at} from the one before {where}")
            elif not line.through:
                self.wrong.append(f"rule 2, the one before is not through {where}")
        line.epoch, line.at, line.through = epoch, at, False

    def _end(self, partition: int, key: str, entry_id: Id, epoch: int) -> None:
        self.finished.add((partition, entry_id))
        line = self._lines[self._name(partition, key)]
        if line.epoch == epoch and line.at >= 0 and line.ids[line.at] == entry_id:
            line.through = True

    def _unfinished_from(self, name: tuple[int, str]) -> int:
        ids, first = self._lines[name].ids, self._first[name]
        while first < len(ids) and (name[0], ids[first]) in self.finished:
            first += 1
        self._first[name] = first
        return first

    def _acknowledge(self, where: str, partition: int, before: Id) -> None:
        entries, at = self._streams[partition], self._checked[partition]
        while at < len(entries) and entries[at][1] < before:
            if (partition, entries[at][1]) not in self.finished:
                self.wrong.append(f"rule 5, nobody was through with {entries[at]} {where}")
            at += 1
        self._checked[partition] = at
        self._acknowledged[partition] = max(before, self._acknowledged.get(partition, (0, 0)))


def _index(ids: Sequence[Id], entry_id: Id) -> int:
    """Where an ID is in a sorted sequence."""
    at = bisect_left(ids, entry_id)
    assert ids[at] == entry_id
    return at
