"""``MemoryStore``: an in-memory store, for testing functions. Its contents are lost with the object."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.jobs.store.changes import StateChanges
from tidelog.jobs.store.records import digest


class MemoryStore:
    """Supports ``begin`` and ``commit`` like a StateStore. There is no undo: uncommitted changes have no effect."""

    def __init__(self) -> None:
        self.epoch = 0
        self.now_ms = 0
        self._records: dict[bytes, bytes] = {}

    def begin(self, now_ms: int) -> StateChanges:
        """Return changes at the time of a batch, or at that of the last commit if it is later."""
        return StateChanges(self, max(now_ms, self.now_ms), True)

    def commit(self, changes: StateChanges) -> str:
        """Make the changes the next version. Returns the digest, like a StateStore."""
        keys = changes.ordered()
        self.epoch += 1
        self.now_ms = changes.now_ms
        for key in keys:
            record = changes.writes[key]
            if record is None:
                self._records.pop(key, None)
            else:
                self._records[key] = record
        changes.end()
        return digest(keys, [changes.writes[key] for key in keys])

    def fetch(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        return [(key, self._records[key]) for key in keys if key in self._records]

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(key for key in self._records if key.startswith(prefix)):
            yield key, self._records[key]
