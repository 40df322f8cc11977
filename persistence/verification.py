"""Verifies a data directory that no server uses, without changing it.

It checks every entry of the store, every batch of the journal, every frame of the WAL, and their consistency with each
other. The scrub (``scrub``) verifies the entries of the store, and a start (``log``) verifies most of the rest. This
module does both. It reports all damage of the store, whereas a start reports only the first damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from persistence import directory as datadir
from persistence.history import NAME as HISTORY
from persistence.history import History
from persistence.journal import Journal
from persistence.recovery import Recovered, behind
from persistence.scrub import Scrub
from persistence.store import Store
from persistence.wal import Wal
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool

AT_ONCE = 4 << 20  # bytes that are read between two reports of progress


@dataclass(slots=True)
class VerifyReport:
    """The result of verify()."""

    directory: Path
    bytes: int = 0  # of the store
    streams: int = 0
    nodes: int = 0
    journal_batches: int = 0
    wal_batches: int = 0
    torn_bytes: int = 0  # frames at the end of the WAL that were not acknowledged; no damage
    log_offset: int = 0
    problems: list[str] = field(default_factory=list)

    def fields(self) -> dict[str, object]:
        """Return the report for JSON."""
        return {
            "directory": str(self.directory), "intact": not self.problems, "bytes": self.bytes,
            "streams": self.streams, "nodes": self.nodes, "journal_batches": self.journal_batches,
            "wal_batches": self.wal_batches, "torn_bytes": self.torn_bytes, "log_offset": self.log_offset,
            "problems": self.problems,
        }  # fmt: skip


def verify(directory: Path, show: Callable[[int, int], None]) -> VerifyReport:
    """Verify a directory. ``show``: called with the bytes of the store that were read, and all of them.

    Raises CorruptError if it is not a data directory or was not started since a full copy, OSError if a server uses it.
    """
    if datadir.marked(directory) is None:
        raise CorruptError(f"{directory}: not a data directory of tidelog: it has no {datadir.MARKER}")
    if (directory / "incoming.ready").exists():
        raise CorruptError(f"{directory}: a complete full copy waits in incoming.ready: start the server once first")
    lock = datadir.lock(directory)
    report = VerifyReport(directory)
    try:
        _verify(directory, report, show)
    except CorruptError as error:
        report.problems.append(str(error))
    finally:
        os.close(lock)
    return report


def _verify(directory: Path, report: VerifyReport, show: Callable[[int, int], None]) -> None:
    """Add what is found to the report. Raises CorruptError if the rest cannot be read."""
    for name in (*datadir.PARTS, HISTORY):
        path = directory / name
        if not datadir.size_of(path / "data.mdb" if name in datadir.PARTS[1:] else path):
            raise CorruptError(f"{directory}: {name} missing or empty: {REMEDY}")
    History.load(directory, datadir.marked(directory) or "")
    store = Store(directory / "store")
    try:
        scrub = Scrub(store, directory, keeps=False)
        scrub.begin(0)
        while scrub.running:
            scrub.step(AT_ONCE, 0)
            show(scrub.read, max(scrub.read, scrub.total))
        report.bytes = scrub.read
        report.problems += [f"{store.path}: {damage}" for damage in scrub.damage]
        ks = Keyspace(NodePool(store, NodeCache(0)))
        report.streams, report.nodes, _ = store.restore(ks)
        _verify_log(directory, report, ks, store.offset)
    finally:
        store.close()


def _verify_log(directory: Path, report: VerifyReport, ks: Keyspace, stored: int) -> None:
    """Read the journal and the WAL, and replay what is later than the store. Raises CorruptError."""
    found = Recovered()
    wal = Wal(directory / "tail")
    try:
        journal = Journal(directory / "journal")
        try:
            if stored > journal.end:
                raise behind(journal.path, journal.end, stored, directory / "store")
            for offset, batch in journal.read(journal.first()):
                report.journal_batches += 1
                if offset >= stored:
                    found.replay(ks, batch, journal.path)
            end = journal.end
            noted = wal.noted
            if noted is not None and stored < noted[1]:
                raise behind(directory / "store", stored, noted[1], wal.path)
            frames, report.torn_bytes = wal.read(end, wipe=False)
            for offset, batch, _, _ in frames:
                found.replay(ks, batch, wal.path)
                report.wal_batches += 1
                end = offset + len(batch)
            if noted is not None and end < noted[0]:
                raise behind(journal.path, end, noted[0], wal.path)
            report.log_offset = end
        finally:
            journal.close(tidy=False)
    finally:
        wal.close()
