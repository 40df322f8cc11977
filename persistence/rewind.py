"""Rewinding: deletes the end of the log of a data directory, so that another history can continue at the new end.

No server may have the directory open.

    1  the frames of the WAL are moved to the journal
    2  an empty WAL replaces the old one, whose frames could follow the new end of the log; its note has the new end
    3  one transaction of the journal deletes all records after the new end

Rule: a crash after any step leaves a valid log: the whole log before step 3, and the shortened log after it. If the
store includes effects of records after the new end, nothing changes.
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
    """Delete all records from log offset ``offset`` on. Return the size of the deleted records in bytes.

    Raises GoneError if no record begins at the offset or the store has advanced beyond it, and CorruptError. The log is
    unchanged in these cases. Raises OSError; the records may have been deleted then.
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
