"""``StateChanges``: what an epoch has changed so far, over what is stored; with savepoints.

Rule 1: nothing here reaches the store before its ``commit``. What is dropped has not happened.
Rule 2: a value is seen while the time of the changes is before its deadline, whether it is stored or new.
Rule 3: what was read from the store is kept until the epoch's end: a commit needs it again, for pre-images. So memory
        is bounded by what an epoch reads by key and writes; a scan keeps nothing.
Rule 4: a child sees its parent's writes, and its parent sees the child's after ``merge``. A child that is not merged
        leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tidelog.jobs.store.errors import StateError, StoreError
from tidelog.jobs.store.records import stamp, unless_over, with_deadline


def ended() -> StateError:
    """For what is used after ``Changes.end``."""
    return StateError("a state was used after the call that it was for: keep no state, and no scan of one")


class StateBase(Protocol):
    """What is stored, as an epoch finds it."""

    def fetch(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Those of ``keys`` that have a record, with it. ``keys`` ascend."""

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All records whose keys begin with ``prefix``, in order."""


class _Epoch:
    """What the savepoints of an epoch share."""

    __slots__ = ("base", "failed", "open", "read", "sorted", "timed")

    def __init__(self, base: StateBase, timed: bool) -> None:
        self.base = base
        self.open = True
        self.failed: StoreError | None = None  # what is stored could not be read
        self.read: dict[bytes, bytes | None] = {}  # stored key: stored record
        self.sorted = True  # ``read`` is in order
        self.timed = timed  # there may be records with deadlines

    def load(self, keys: Sequence[bytes]) -> None:
        ordered = sorted(keys)
        found: dict[bytes, bytes | None] = dict.fromkeys(ordered)
        try:
            found.update(self.base.fetch(ordered))
        except StoreError as error:
            self.failed = error
            raise
        if self.read:
            self.read.update(found)
            self.sorted = False
        else:
            self.read = found

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self.base.walk(prefix)
        except StoreError as error:
            self.failed = error
            raise


class StateChanges:
    """Writes of an epoch, or of a part of it. Keys are stored keys, values are records without deadlines."""

    __slots__ = ("epoch", "now_ms", "parent", "writes")

    def __init__(self, base: StateBase, now_ms: int, timed: bool) -> None:
        """timed: values with a deadline may be stored."""
        if now_ms < 0:
            raise ValueError(f"a time before 1970: {now_ms} ms")
        self.epoch = _Epoch(base, timed)
        self.now_ms = now_ms
        self.parent: StateChanges | None = None
        self.writes: dict[bytes, bytes | None] = {}  # None: deleted

    @property
    def failed(self) -> StoreError | None:
        """Why what is stored could not be read, the last time that it could not: whoever asked may not have told."""
        return self.epoch.failed

    def child(self, now_ms: int | None = None) -> StateChanges:
        """A savepoint: changes over these. ``now_ms``: its time, if it is later."""
        made = StateChanges.__new__(StateChanges)
        made.epoch = self.epoch
        made.now_ms = max(self.now_ms, now_ms or 0)
        made.parent = self
        made.writes = {}
        return made

    def merge(self) -> None:
        """Give a child's writes and time to its parent. The child is as new then."""
        if self.parent is None:
            raise ValueError("these changes are no child: a store commits them")
        self.parent.writes.update(self.writes)
        self.parent.now_ms = max(self.parent.now_ms, self.now_ms)
        self.writes = {}

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The record of each key, with its deadline if it has one; None where there is none, or it is over."""
        epoch = self._epoch()
        missing = [key for key in keys if key not in epoch.read] if epoch.read else keys
        if missing:
            epoch.load(missing)
        found = list(map(epoch.read.get, keys))
        for level in self._levels():
            found = [level.get(key, before) for key, before in zip(keys, found, strict=True)]
        return unless_over(found, stamp(self.now_ms)) if epoch.timed else found

    def put(self, keys: Sequence[bytes], records: Sequence[bytes], ttl_ms: int | None = None) -> None:
        """Of a key that is named twice, the last record counts."""
        epoch = self._epoch()
        if ttl_ms is not None and records:
            records = with_deadline(records, self.now_ms + ttl_ms)
            epoch.timed = True
        self.writes.update(zip(keys, records, strict=True))

    def delete(self, keys: Sequence[bytes]) -> None:
        self._epoch()
        self.writes.update(dict.fromkeys(keys))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys with the prefix and their records, in order, as they are now: later writes are not seen."""
        self._epoch()
        own: dict[bytes, bytes | None] = {}
        for level in self._levels():
            own.update((key, record) for key, record in level.items() if key.startswith(prefix))
        return self._merged(prefix, sorted(own.items(), reverse=True), stamp(self.now_ms))

    def _merged(
        self, prefix: bytes, own: list[tuple[bytes, bytes | None]], now: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """``own`` descends: the next one is the last."""
        for key, record in self.epoch.walk(prefix):
            while own and own[-1][0] < key:
                yield from _seen(*own.pop(), now)
            if own and own[-1][0] == key:
                yield from _seen(*own.pop(), now)
            else:
                yield from _seen(key, record, now)
        while own:
            yield from _seen(*own.pop(), now)

    def before(self, keys: list[bytes]) -> list[bytes | None]:
        """What is stored for each key, over or not."""
        missing = [key for key in keys if key not in self.epoch.read]
        if missing:
            self.epoch.load(missing)
        return list(map(self.epoch.read.get, keys))

    def ordered(self) -> list[bytes]:
        """The keys that were written, in order."""
        epoch = self.epoch
        same = epoch.sorted and len(epoch.read) == len(self.writes) and epoch.read.keys() == self.writes.keys()
        return list(epoch.read) if same else sorted(self.writes)

    def end(self) -> None:
        """No reading or writing from now on, by no child either."""
        self.epoch.open = False

    def _epoch(self) -> _Epoch:
        if not self.epoch.open:
            raise ended()
        return self.epoch

    def _levels(self) -> list[dict[bytes, bytes | None]]:
        """The writes that count here, the oldest first."""
        levels = []
        level: StateChanges | None = self
        while level is not None:
            if level.writes:
                levels.append(level.writes)
            level = level.parent
        return levels[::-1]


def _seen(key: bytes, record: bytes | None, now: bytes) -> Iterator[tuple[bytes, bytes]]:
    [shown] = unless_over([record], now)
    if shown is not None:
        yield key, shown
