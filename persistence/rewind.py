"""Rewinding: deletes the end of the log of a directory that no server has open, so that another history can continue
from there.

    1  the journal takes the frames of the WAL
    2  an empty WAL replaces the old one, whose frames could follow the new end of the log; its note has the new end
    3  one transaction of the journal deletes all records from the new end on

Rule: after each step, a start finds a valid log: the whole log before step 3, and the rewound one after it. If the
store has effects of records after the new end, nothing changes.
"""

from __future__ import annotations

import os
from pathlib import Path

from persistence import directory as datadir
from persistence.backlog import GoneError, records_from
from persistence.journal import Journal
from persistence.store import Store
from persistence.wal import Wal, create


def rewind(directory: Path, offset: int) -> int:
    """Delete all records from log offset ``offset`` on. Returns the size of the deleted records in bytes.

    Raises OSError and CorruptError, and GoneError if no record begins at the offset or the store is beyond it; the log
    is then unchanged. After an OSError, the records may have been deleted.
    """
    lock = datadir.lock(directory)
    try:
        store = Store(directory / "store")
        stored = store.offset
        store.close()
        if stored > offset:
            raise GoneError(f"the store has advanced to log offset {stored}")
        journal = Journal(directory / "journal")
        try:
            return _rewind(directory, journal, offset, stored)
        finally:
            journal.close()
    finally:
        os.close(lock)


def _rewind(directory: Path, journal: Journal, offset: int, stored: int) -> int:
    wal = Wal(directory / "tail")
    try:
        frames, _ = wal.read(journal.end)
        if frames:
            journal.write(frames)
    finally:
        wal.close()
    found = journal.read_some(offset, 1)
    if not found:
        raise GoneError(f"the log does not contain offset {offset}")
    at, batch = found[0]
    records_from(batch, offset - at)
    temporary = directory / "tail.new"
    try:
        create(temporary, wal.size, (offset, stored))
        temporary.rename(wal.path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    datadir.sync(directory)
    deleted = journal.end - offset
    journal.rewind(at, batch[: offset - at])
    return deleted
