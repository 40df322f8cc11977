"""The directory or the fsspec URL (``s3://``, ``gs://``, ...) with the files of an export.

Rule 1: a file is complete, or it does not exist under its name.
Rule 2: if two exports write the same entries at the same time, each finds the file of the other after it has written
        its own, and at least one of them removes its own file and fails.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.exporting.layout import ExportedFile, ExportError


class ExportTarget:
    """A target. ``shown`` is its name in messages."""

    def __init__(self, target: str) -> None:
        """``target``: a path or a URL. Raises ExportError if the kind of URL is not supported."""
        scheme, found, rest = target.partition("://")
        self.shown = f"{scheme}://{rest.rpartition('@')[2]}" if found else target  # without the password
        self._files: Any = None  # None: a local directory
        self._top = rest if scheme == "file" and found else target
        if found and scheme != "file":
            with self._explained("use"):
                self._files, self._top = _file_system(target)
        self._top = self._top.rstrip("/") or "/"

    def files(self) -> list[ExportedFile]:
        """Return the files of exports, in the order of keys and IDs."""
        with self._explained("list"):
            return sorted(filter(None, map(ExportedFile.parse, self._names())))

    def schema(self, file: ExportedFile) -> pa.Schema:
        """Return the columns of a file."""
        with self._explained("read"), self._opened(file.name) as stream:
            return pq.read_schema(stream).remove_metadata()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Return the path at which a file is written before it has its name. The file is removed at the end."""
        top = Path(self._top)
        with self._explained("write"):
            if self._files is None:
                top.mkdir(parents=True, exist_ok=True)
            place = tempfile.TemporaryDirectory(prefix=".export-", dir=top if self._files is None else None)
        with place as folder:
            yield Path(folder, "rows")

    def add(self, written: Path, file: ExportedFile) -> None:
        """Give a written file its name. Raises ExportError if another export has written the same entries."""
        with self._explained("write"):
            if self._files is None:
                path = Path(self._top, file.name)
                path.parent.mkdir(exist_ok=True)
                with written.open("rb") as stream:
                    os.fsync(stream.fileno())
                written.rename(path)
                _sync(path.parent)
                _sync(path.parent.parent)
            else:
                there, size = f"{self._top}/{file.name}", written.stat().st_size
                self._files.put_file(str(written), there)
                if self._files.info(there)["size"] != size:
                    raise OSError(None, f"{file.name} has another size than the file that was written")
                written.unlink()
        same = [each for each in self.files() if each.key == file.key and _overlap(each, file)]
        if same != [file]:
            self._remove(file)
            raise ExportError(f"another export writes to {self.shown}: end it, and run this one again")

    def _remove(self, file: ExportedFile) -> None:
        with self._explained("remove a file in"):
            if self._files is None:
                Path(self._top, file.name).unlink()
            else:
                self._files.rm_file(f"{self._top}/{file.name}")

    def _names(self) -> list[str]:
        if self._files is None:
            return [path.relative_to(self._top).as_posix() for path in Path(self._top).glob("ts_day=*/*")]
        self._files.invalidate_cache()
        try:
            found = self._files.find(self._top)
        except FileNotFoundError:
            return []
        return [str(name)[len(self._top) + 1 :] for name in found]

    def _opened(self, name: str) -> Any:
        return Path(self._top, name).open("rb") if self._files is None else self._files.open(f"{self._top}/{name}")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Convert errors to an ExportError. fsspec file systems raise many types."""
        try:
            yield
        except ExportError:
            raise
        except Exception as error:
            reason = (error.strerror if isinstance(error, OSError) else "") or f"{type(error).__name__}: {error}"
            raise ExportError(f"can't {what} {self.shown}: {reason}") from error


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise ExportError("a URL needs fsspec: pip install 'tidelog[arrow,backup]'") from None
    found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    return found


def _overlap(one: ExportedFile, other: ExportedFile) -> bool:
    return one.first <= other.last and other.first <= one.last


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
