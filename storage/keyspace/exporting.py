"""The keys that move to another group of a cluster: their copies and records in one sequence, in small steps [112].

    export = KeyExport(ks, moves)
    export.on_batch(batch)       with the batch of each tick, from now on
    while export.step(): ...     at the end of a tick, when ks.log is empty; see ``absent``
    export.take()                the records so far
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from resp.errors import AbsentNodeError
from storage.keyspace.copying import copy_of, fence_copy, stage_copy
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.linking import NOT_LINKED, LinkedObjects
from storage.keyspace.moving import MovedRecords
from storage.streams.stream import Stream

AT_ONCE: Final = 1000  # names that one step examines, which takes a third of a millisecond
MOST: Final = 1 << 62
EXAMINED: Final = "the stages are examined"


def _divided(name: bytes) -> str:
    shown = name[:100].decode("utf-8", "backslashreplace")
    return f"the stage {shown!r} has entries for slots that move and for slots that stay: publish or drop it"


def letters_of(ks: Keyspace, names: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key of each stream with pending messages among these keys, with each dead-letter key that they use."""
    for name in names:
        value = ks.keys.get(name)
        if isinstance(value, Stream) and value.groups:
            for group in value.groups.values():
                for letter in group.pending.deadletters():
                    yield name, letter


class KeyExport:
    """The sequence. ``moves``: whether a key, a stage or a fence has one of the moving slots."""

    def __init__(
        self, ks: Keyspace, moves: Callable[[bytes], bool], linked: Mapping[str, int] = NOT_LINKED
    ) -> None:  # fmt: skip
        """``linked``: see ``LinkedObjects``."""
        self.ks = ks
        self._moves = moves
        self._linked = linked
        self._selection = MovedRecords(moves)
        self._selection.unstaged = set(ks.stages.by_name)
        self._selection.grown = set(ks.stages.by_name)
        self._divided = b"", -1  # a stage that holds up the move: name, sid
        self._examined: dict[bytes, tuple[int, int]] = {}  # by large stage: sid, and how many chunks were examined
        self._steps = self._all_steps()
        self._out: list[bytes] = []
        self.size = 0  # bytes of the records that were not taken
        self.complete = False  # everything is copied; keys that are renamed can make it incomplete again
        self.largest = 0  # bytes of the largest record of a copy
        self.keys = 0  # keys to copy that were found
        self.copied = 0  # number of those that are copied
        self.absent: AbsentNodeError | None = None  # a node that is only in the object store: the next step needs it

    def close(self) -> None:
        """Release what the steps have opened."""
        self._steps.close()

    def on_batch(self, batch: bytes) -> None:
        """Add the records of a tick. Raises MoveEndedError."""
        self._add(self._selection.select(batch))
        if self._selection.todo and self.complete:
            self.complete = False

    def _add(self, some: list[bytes]) -> None:
        self._out += some
        self.size += sum(map(len, some))

    def take(self, most: int = MOST) -> bytes:
        """Return the next records that were not taken: at most ``most`` bytes of them, or one larger record."""
        out, size, number = self._out, 0, 0
        for record in out:
            if number and size + len(record) > most:
                break
            size += len(record)
            number += 1
        self._out, self.size = out[number:], self.size - size
        return b"".join(out[:number])

    def step(self) -> bool:
        """Do some work. Return False if everything is copied. Raises MoveEndedError, DamagedNodeError."""
        self.absent = None
        if not self.complete:
            next(self._steps)
        return not self.complete

    def held_up(self) -> str:
        """Return why the slots can't leave now, although everything is copied; "" if they can.

        A stage is in one group. If its name or some of its entries stay, it must be published or dropped first. A call
        examines at most AT_ONCE entries of stages, and only of those that have grown since they were examined.
        """
        stages, left = self.ks.stages.by_name, AT_ONCE
        name, sid = self._divided
        stage = stages.get(name)
        if stage is not None and stage.sid == sid:
            return _divided(name)
        self._divided = b"", -1
        grown = self._selection.grown
        while grown:
            if left <= 0:
                return EXAMINED
            name = next(iter(grown))
            stage = stages.get(name)
            pieces = stage.pieces if stage is not None else []
            sid, at = self._examined.get(name, (-1, 0))
            at = at if stage is not None and stage.sid == sid else 0
            moves = self._moves(name)
            while at < len(pieces) and left > 0:
                if stage is not None and self._moves(pieces[at].key) != moves:
                    self._divided = name, stage.sid
                    return _divided(name)
                at += 1
                left -= 1
            if stage is not None and at >= AT_ONCE:
                self._examined[name] = stage.sid, at
            if at == len(pieces):
                grown.discard(name)
            left -= 1
        return ""

    def _all_steps(self) -> Generator[None, None, None]:
        ks, selection = self.ks, self._selection
        cursor, begun = 0, False
        while cursor or not begun:
            begun = True
            cursor, names = ks.index.page(cursor, AT_ONCE)
            selection.todo.update([name for name in names if self._moves(name)])
            for name, letter in letters_of(ks, names):
                selection.check_letters(name, letter)
            yield
        yield from self._stages()
        self.keys = len(selection.todo)
        selection.gathering = False
        while True:
            while (key := selection.next_key()) is not None:
                if key in ks.keys:
                    yield from self._copy(key)
                self._add(selection.copied())
                self.copied += 1
            self.complete = True
            yield

    def _copy(self, key: bytes) -> Iterator[None]:
        for record in copy_of(self.ks, key, LinkedObjects(self._linked).refer):
            if not record:
                self.absent = self.ks.pool.take_absent()
                yield
                continue
            self._selection.check_copy(key, record)
            self.largest = max(self.largest, len(record))
            self._add([record])
            yield

    def _stages(self) -> Iterator[None]:
        ks, selection = self.ks, self._selection
        for fence in list(ks.stages.fences):
            if self._moves(fence):
                self._add([fence_copy(ks, fence)])
                yield
        while selection.unstaged:
            name = next(iter(selection.unstaged))
            selection.unstaged.discard(name)
            stage = ks.stages.by_name.get(name)
            keys = {piece.key for piece in stage.pieces if self._moves(piece.key)} if stage is not None else set()
            if stage is not None and keys:
                selection.stages.add(name)
                self._add(list(stage_copy(name, stage, keys)))
                yield
