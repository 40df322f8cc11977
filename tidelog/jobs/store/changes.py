"""``StateChanges``: the uncommitted changes of an epoch, with savepoints.

Rule 1: Nothing here reaches the store before its ``commit``. Changes that are dropped have no effect.
Rule 2: A value is visible while the time of the changes is before its deadline, whether it is stored or new.
Rule 3: Records that were read from the store are cached until the epoch's end, because a commit needs them as
        pre-images. Memory is therefore bounded by what an epoch reads by key and writes; a scan caches nothing.
Rule 4: A child sees its parent's writes, and the parent sees the child's after ``merge``. A child that is not merged
        has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tidelog.jobs.store.errors import StateError, StoreError
from tidelog.jobs.store.records import stamp, unless_expired, with_deadline


def ended() -> StateError:
    """Return the error for a use after ``StateChanges.end``."""
    return StateError("a state was used after the call for which it was created: do not keep a state, or a scan of one")


class StateBase(Protocol):
    """The stored records at the start of an epoch."""

    def fetch(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the records of those ``keys`` that have one. ``keys`` are in ascending order."""

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all records whose keys start with ``prefix``, in order."""


class _Epoch:
    """The data that the savepoints of an epoch share."""

    __slots__ = ("base", "failed", "open", "read", "sorted", "timed")

    def __init__(self, base: StateBase, timed: bool) -> None:
        self.base = base
        self.open = True
        self.failed: StoreError | None = None  # why the store could not be read
        self.read: dict[bytes, bytes | None] = {}  # stored key: stored record
        self.sorted = True  # whether ``read`` is sorted
        self.timed = timed  # whether records may have deadlines

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
    """The writes of an epoch, or of a part of it. Keys are stored keys, values are records without deadlines."""

    __slots__ = ("epoch", "now_ms", "parent", "writes")

    def __init__(self, base: StateBase, now_ms: int, timed: bool) -> None:
        """timed: stored values may have deadlines."""
        if now_ms < 0:
            raise ValueError(f"a time before 1970: {now_ms} ms")
        self.epoch = _Epoch(base, timed)
        self.now_ms = now_ms
        self.parent: StateChanges | None = None
        self.writes: dict[bytes, bytes | None] = {}  # None: deleted

    @property
    def failed(self) -> StoreError | None:
        """The last error in reading the store: the function may have suppressed it."""
        return self.epoch.failed

    def child(self, now_ms: int | None = None) -> StateChanges:
        """Return a savepoint: changes on top of these. ``now_ms``: its time, if it is later."""
        made = StateChanges.__new__(StateChanges)
        made.epoch = self.epoch
        made.now_ms = max(self.now_ms, now_ms or 0)
        made.parent = self
        made.writes = {}
        return made

    def merge(self) -> None:
        """Move a child's writes and time to its parent. The child is empty afterwards."""
        if self.parent is None:
            raise ValueError("these changes are not a child: a store commits them")
        self.parent.writes.update(self.writes)
        self.parent.now_ms = max(self.parent.now_ms, self.now_ms)
        self.writes = {}

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the record of each key, with its deadline if it has one; None if there is none or it has expired."""
        epoch = self._epoch()
        missing = [key for key in keys if key not in epoch.read] if epoch.read else keys
        if missing:
            epoch.load(missing)
        found = list(map(epoch.read.get, keys))
        for level in self._levels():
            found = [level.get(key, before) for key, before in zip(keys, found, strict=True)]
        return unless_expired(found, stamp(self.now_ms)) if epoch.timed else found

    def put(self, keys: Sequence[bytes], records: Sequence[bytes], ttl_ms: int | None = None) -> None:
        """Store records. If a key occurs twice, the last record counts."""
        epoch = self._epoch()
        if ttl_ms is not None and records:
            records = with_deadline(records, self.now_ms + ttl_ms)
            epoch.timed = True
        self.writes.update(zip(keys, records, strict=True))

    def delete(self, keys: Sequence[bytes]) -> None:
        self._epoch()
        self.writes.update(dict.fromkeys(keys))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys with the prefix and their records, in order. Later writes are not visible."""
        self._epoch()
        own: dict[bytes, bytes | None] = {}
        for level in self._levels():
            own.update((key, record) for key, record in level.items() if key.startswith(prefix))
        return self._merged(prefix, sorted(own.items(), reverse=True), stamp(self.now_ms))

    def _merged(
        self, prefix: bytes, own: list[tuple[bytes, bytes | None]], now: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Merge stored records with ``own``, which is in descending order: its last element is the next one."""
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
        """Return the stored record of each key, expired or not."""
        missing = [key for key in keys if key not in self.epoch.read]
        if missing:
            self.epoch.load(missing)
        return list(map(self.epoch.read.get, keys))

    def ordered(self) -> list[bytes]:
        """Return the written keys in order."""
        epoch = self.epoch
        same = epoch.sorted and len(epoch.read) == len(self.writes) and epoch.read.keys() == self.writes.keys()
        return list(epoch.read) if same else sorted(self.writes)

    def end(self) -> None:
        """Reject any further use, including that of children."""
        self.epoch.open = False

    def _epoch(self) -> _Epoch:
        if not self.epoch.open:
            raise ended()
        return self.epoch

    def _levels(self) -> list[dict[bytes, bytes | None]]:
        """Return the writes that are visible here, the oldest first."""
        levels = []
        level: StateChanges | None = self
        while level is not None:
            if level.writes:
                levels.append(level.writes)
            level = level.parent
        return levels[::-1]


def _seen(key: bytes, record: bytes | None, now: bytes) -> Iterator[tuple[bytes, bytes]]:
    [shown] = unless_expired([record], now)
    if shown is not None:
        yield key, shown
