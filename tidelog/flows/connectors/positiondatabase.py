"""``PositionDatabase``: an SQLite file that stores many positions of one source. All calls block.

The calls can come from several threads. A second source that opens the same file fails.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PositionDatabase:
    """One file. All methods raise OSError."""

    def __init__(self, path: Path | None, schema: str, kind: str) -> None:
        """path: None: nothing is stored. kind: the type of the connector.

        Raises OSError, and ValueError if the file is not valid.
        """
        self._lock = threading.Lock()  # a connection has one transaction at a time
        try:
            self._database = sqlite3.connect(
                ":memory:" if path is None else path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise OSError(None, f"position: {path}: {error}") from error
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")  # a power failure only causes duplicates
            self._database.executescript(schema)
            self._begin()
        except sqlite3.OperationalError as error:
            self._database.close()
            used = "another source uses it" if "locked" in str(error) else str(error)
            raise OSError(None, f"position: {path}: {used}") from error
        except sqlite3.DatabaseError as error:
            self._database.close()
            text = f"{path} is not a position of {kind}: {error}; delete it to read from the beginning"
            raise ValueError(text) from None

    def _begin(self) -> None:
        """Change rows when the file has been opened."""

    def close(self) -> None:
        with self._locked():
            self._database.close()

    @contextmanager
    def _locked(self, *, transaction: bool = False) -> Iterator[None]:
        try:
            with self._lock:
                if not transaction:
                    yield
                    return
                with self._database:
                    self._database.execute("BEGIN")
                    yield
        except sqlite3.Error as error:
            raise OSError(None, f"position: {error}") from error
