"""The result of recovery."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay


@dataclass(slots=True)
class Recovered:
    """Counts of restored and dropped data."""

    streams: int = 0
    nodes: int = 0
    strings: int = 0
    store_seconds: float = 0.0
    journal_batches: int = 0
    wal_batches: int = 0
    replayed_bytes: int = 0
    torn_bytes: int = 0  # size of frames at the end that were not acknowledged, or not synced before a power failure
    resize_problem: str = ""  # why the WAL kept its old size
    replay_seconds: float = 0.0

    def replay(self, ks: Keyspace, batch: bytes, path: Path) -> None:
        """Apply a batch from the file ``path``. Raises CorruptError if it is damaged."""
        try:
            replay(ks, batch)
        except CorruptError as error:
            raise CorruptError(f"{path}: {error}; {REMEDY}") from error
        ks.log.clear()
        self.replayed_bytes += len(batch)

    def lines(self) -> list[str]:
        """Return the result as lines for the log."""
        content = f"streams={self.streams} nodes={self.nodes} strings={self.strings}"
        lines = [f"Recovered from the store: {content} seconds={self.store_seconds:.3f}"]
        if self.journal_batches or self.wal_batches:
            lines.append(
                f"Replayed from the journal: batches={self.journal_batches} and from the WAL:"
                f" batches={self.wal_batches}, bytes={self.replayed_bytes} seconds={self.replay_seconds:.3f}"
            )
        if self.torn_bytes:
            lines.append(f"Dropped the torn end of the WAL: {self.torn_bytes} bytes, which were not synced")
        if self.resize_problem:
            lines.append(f"The WAL keeps its size: {self.resize_problem}")
        return lines


def behind(path: Path, offset: int, noted: int, says: Path) -> CorruptError:
    """Return the error for a file that ends at a log offset, although the file ``says`` recorded a higher one."""
    return CorruptError(
        f"{path}: ends at log offset {offset}, but {says} records {noted}: the end of the file"
        f" is lost, or the file is an older copy; {REMEDY}"
    )
