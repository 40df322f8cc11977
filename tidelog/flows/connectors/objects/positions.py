"""Which objects a source has read, in an SQLite file. All calls block, and can come from several threads.

Rule 1: An object is identified by its path and its version. An object that was replaced is read again.
Rule 2: After a crash, an object that was not settled completely is read again from its first unsettled event.
Rule 3: The file has one row for each object that exists, so it does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.flows.connectors.objects.stores import ListedObject
from tidelog.flows.connectors.positiondatabase import PositionDatabase

_UNREAD: Final = 0
_TAKEN: Final = 1  # is being read, or has unsettled events
_DONE: Final = 2
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
    directory TEXT, name TEXT, version TEXT, modified REAL, size INTEGER,
    state INTEGER, -- 0: unread, 1: taken, 2: settled
    events INTEGER, -- at the beginning that are settled
    PRIMARY KEY (directory, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unread ON objects (modified, directory, name) WHERE state = 0;
"""


class UnreadObject(NamedTuple):
    """An object to read."""

    directory: str  # with its last slash
    name: str
    version: str
    size: int  # bytes
    settled: int  # events at the beginning that are settled

    @property
    def path(self) -> str:
        return self.directory + self.name


class ObjectPositions(PositionDatabase):
    """The objects of one source. All methods raise OSError."""

    def __init__(self, path: Path | None, *, again: bool = False) -> None:
        """path: None: nothing is stored. again: it is opened again by the same source, which knows the taken objects.

        Raises OSError, and ValueError if the file is not valid.
        """
        self._again = again
        super().__init__(path, _SCHEMA, "object_store")

    def _begin(self) -> None:
        if not self._again:
            self._database.execute("UPDATE objects SET state = ? WHERE state = ?", (_UNREAD, _TAKEN))

    def merge(self, directory: str, listed: Sequence[ListedObject]) -> int:
        """Add the new objects of a directory, and remove those that no longer exist. Return the number of new ones."""
        with self._locked():
            known = dict(self._database.execute("SELECT name, version FROM objects WHERE directory = ?", (directory,)))
        new = [each for each in listed if known.pop(each.name, None) != each.version]
        rows = [(directory, each.name, each.version, each.modified, each.size, _UNREAD, 0) for each in new]
        if rows or known:
            with self._locked(transaction=True):
                self._database.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                gone = [(directory, name) for name in known]
                self._database.executemany("DELETE FROM objects WHERE directory = ? AND name = ?", gone)
        return len(new)

    def retain(self, directories: Set[str]) -> None:
        """Remove the objects of all other directories."""
        with self._locked(transaction=True):
            known = [each for (each,) in self._database.execute("SELECT DISTINCT directory FROM objects")]
            gone = [(each,) for each in known if each not in directories]
            self._database.executemany("DELETE FROM objects WHERE directory = ?", gone)

    def take(self) -> UnreadObject | None:
        """Return the oldest unread object. Each is returned once."""
        with self._locked(transaction=True):
            found = self._database.execute(
                "SELECT directory, name, version, size, events FROM objects WHERE state = 0"
                " ORDER BY modified, directory, name LIMIT 1"
            ).fetchone()
            if found is None:
                return None
            taken = UnreadObject(*found)
            self._database.execute(
                "UPDATE objects SET state = ? WHERE directory = ? AND name = ?", (_TAKEN, taken.directory, taken.name)
            )
            return taken

    def settle(self, done: Sequence[UnreadObject], partly: UnreadObject | None, events: int) -> None:
        """Store the settled objects, and the number of settled events of the next one."""
        with self._locked(transaction=True):
            where = "WHERE directory = ? AND name = ? AND version = ?"
            self._database.executemany(
                f"UPDATE objects SET state = {_DONE} {where}", [(one.directory, one.name, one.version) for one in done]
            )
            if partly is not None:
                key = (partly.directory, partly.name, partly.version)
                self._database.execute(f"UPDATE objects SET events = ? {where}", (events, *key))
