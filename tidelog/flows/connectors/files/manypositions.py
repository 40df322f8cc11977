"""``ManyPositions``: the positions of all files that a pattern matches, in an SQLite file. All calls block.

There is one row for each file that exists and of which a message is settled, so it does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidelog.flows.connectors.files.tailing import FilePosition
from tidelog.flows.connectors.positiondatabase import PositionDatabase

FileKey = tuple[int, int]  # device, inode
PathPosition = tuple[str, FilePosition]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (
    device TEXT, inode TEXT, -- as text, because inodes have 64 bits without a sign
    path TEXT, -- for people who read the file
    offset INTEGER, length INTEGER, digest TEXT, changed INTEGER, before INTEGER, before_digest TEXT, -- of FilePosition
    PRIMARY KEY (device, inode)
) WITHOUT ROWID;
"""


class ManyPositions(PositionDatabase):
    """The positions of one source. All methods raise OSError."""

    def __init__(self, path: Path | None) -> None:
        """path: None: nothing is stored. Raises OSError, and ValueError if the file is not valid."""
        self.begun = False  # a search was completed
        super().__init__(path, _SCHEMA, "file")

    def _begin(self) -> None:
        self.begun = self._database.execute("PRAGMA user_version").fetchone()[0] > 0

    def load(self) -> dict[FileKey, FilePosition]:
        with self._locked():
            rows = self._database.execute(
                "SELECT device, inode, offset, length, digest, changed, before, before_digest FROM files"
            ).fetchall()
        return {
            (int(device), int(inode)): FilePosition(int(device), int(inode), *rest) for device, inode, *rest in rows
        }

    def begin(self, positions: Iterable[PathPosition]) -> None:
        """Store the positions of the files that the first search has found."""
        with self._locked(transaction=True):
            self._save(positions)
            self._database.execute("PRAGMA user_version = 1")
        self.begun = True

    def save(self, positions: Iterable[PathPosition], gone: Iterable[FileKey] = ()) -> None:
        """Store positions, and remove those of files that no longer exist."""
        with self._locked(transaction=True):
            keys = [(str(device), str(inode)) for device, inode in gone]
            self._database.executemany("DELETE FROM files WHERE device = ? AND inode = ?", keys)
            self._save(positions)

    def _save(self, positions: Iterable[PathPosition]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (str(one.device), str(one.inode), path.encode(errors="replace").decode(), one.offset, one.length,
                 one.digest, one.changed, one.before, one.before_digest)
                for path, one in positions
            ],
        )  # fmt: skip
