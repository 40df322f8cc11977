"""What a start found in the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay


@dataclass(slots=True)
class Recovered:
    """Counts of what was read back, and what was dropped."""

    streams: int = 0
    nodes: int = 0
    strings: int = 0
    store_seconds: float = 0.0
    journal_batches: int = 0
    wal_batches: int = 0
    replayed_bytes: int = 0
    torn_bytes: int = 0  # of frames at the end that were never acknowledged, or not yet synced when the power went
    resize_problem: str = ""  # why the WAL kept its old size
    replay_seconds: float = 0.0

    def replay(self, ks: Keyspace, batch: bytes, path: Path) -> None:
        """Apply a batch that was read from the file ``path``. Raises CorruptError."""
        try:
            replay(ks, batch)
        except CorruptError as error:
            raise CorruptError(f"{path}: {error}; {REMEDY}") from error
        ks.log.clear()
        self.replayed_bytes += len(batch)

    def lines(self) -> list[str]:
        """As text, for the operator."""
        content = f"streams={self.streams} nodes={self.nodes} strings={self.strings}"
        lines = [f"Recovered from the store: {content} seconds={self.store_seconds:.3f}"]
        if self.journal_batches or self.wal_batches:
            lines.append(
                f"Replayed from the journal: batches={self.journal_batches} and from the WAL:"
                f" batches={self.wal_batches}, bytes={self.replayed_bytes} seconds={self.replay_seconds:.3f}"
            )
        if self.torn_bytes:
            lines.append(f"The WAL's end was torn and has been dropped: {self.torn_bytes} bytes, not synced yet")
        if self.resize_problem:
            lines.append(f"The WAL keeps its size: {self.resize_problem}")
        return lines


def behind(path: Path, offset: int, noted: int, says: Path) -> CorruptError:
    """The file ``path`` reaches up to a log offset, but the file ``says`` has a note that it had got further."""
    return CorruptError(
        f"{path}: ends at log offset {offset}, but {says} says that it had got to {noted}: what was written last is"
        f" gone, or the file is an older copy; {REMEDY}"
    )
