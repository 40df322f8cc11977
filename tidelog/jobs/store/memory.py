"""``MemoryStore``: a store without a disk, for tests of functions. It is gone with the object."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.jobs.store.changes import StateChanges
from tidelog.jobs.store.records import digest


class MemoryStore:
    """Begin and commit as a Store does. There is no undo: who does not commit has changed nothing."""

    def __init__(self) -> None:
        self.epoch = 0
        self.now_ms = 0
        self._records: dict[bytes, bytes] = {}

    def begin(self, now_ms: int) -> StateChanges:
        """Changes at the time of a batch; no earlier than that of the last commit."""
        return StateChanges(self, max(now_ms, self.now_ms), True)

    def commit(self, changes: StateChanges) -> str:
        """Make the changes the next version. Returns the digest, as a Store does."""
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
