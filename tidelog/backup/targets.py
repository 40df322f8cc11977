"""Targets of backups: a local directory or an fsspec URL (``s3://``, ``gs://``, ``sftp://``, ...).

Names are relative, with slashes. Both kinds raise BackupError, whose text names the failed operation and the reason.

Rule 1: in a directory, a file is complete or does not exist. Other file systems may not guarantee that, so all written
        data is read back.
Rule 2: in a directory, files are accessible only to their owner (0600, directories 0700).
Rule 3: only regular files of the expected size are read. A FIFO would block, and /dev/zero has no end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

FILE_MODE, FOLDER_MODE = 0o600, 0o700
HALF = ".half"  # suffix of a file that is being written


class BackupError(Exception):
    """A backup cannot be created, found, read, or restored. The text contains the remedy."""


class BackupStoppedError(Exception):
    """The process was asked to stop."""


class BackupTarget(Protocol):
    """A target. ``shown`` is its name in messages."""

    shown: str

    def names(self, folder: str = "", below: bool = True) -> dict[str, int]:
        """Return the files in and below a directory with their sizes in bytes; {} if it does not exist."""

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file of at most that many bytes. Raises BackupError if it is longer or not a regular
        file.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def settle(self) -> None:
        """Make sure that the written data survives a power failure."""


def target_at(target: str) -> BackupTarget:
    """Return the target of a path or a URL. Raises BackupError if the kind of URL is not supported."""
    scheme, found, rest = target.partition("://")
    if not found:
        return LocalTarget(Path(target))
    if scheme == "file":
        return LocalTarget(Path(rest))
    return RemoteTarget(target)


class LocalTarget:
    """A local directory. It is created at the first write."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._path = path
        self._unsettled: set[Path] = set()  # directories with entries that are not synced

    def names(self, folder: str = "", below: bool = True) -> dict[str, int]:
        top = self._path / folder
        found: dict[str, int] = {}
        with _explained(f"can't list {top}"):
            for place, folders, files in os.walk(top, onerror=_unless_missing):
                if not below:
                    folders.clear()  # os.walk then does not descend
                for file in files:
                    path = Path(place, file)
                    with suppress(FileNotFoundError):  # another program has removed it
                        found[path.relative_to(self._path).as_posix()] = path.stat().st_size
        return found

    def read(self, name: str, most: int) -> bytes:
        path = self._path / name
        with _explained(f"can't read {path}"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not block on a FIFO
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(None, "it is no regular file")
                return _limited(file.read(most + 1), most)

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        half = path.with_name(path.name + HALF)
        with _explained(f"can't write {path}"):
            self._make(path.parent)
            try:
                descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
                with open(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                    if hasattr(os, "posix_fadvise"):  # read the data back from the disk, not from the page cache
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                half.rename(path)
            except BaseException:
                half.unlink(missing_ok=True)
                raise
            self._unsettled.add(path.parent)

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(FOLDER_MODE, exist_ok=True)
            self._unsettled.add(folder.parent)

    def remove(self, name: str) -> None:
        with _explained(f"can't remove {self._path / name}"):
            (self._path / name).unlink(missing_ok=True)

    def settle(self) -> None:
        with _explained(f"can't sync {self._path}"):
            while self._unsettled:
                sync_folder(self._unsettled.pop())


class RemoteTarget:
    """A directory of an fsspec file system."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.shown = f"{scheme}://{rest.rpartition('@')[2]}"  # without the password
        try:
            import fsspec
        except ImportError:
            raise BackupError(f"{self.shown} needs fsspec: pip install 'tidelog[backup]'") from None
        with _explained(f"can't use {self.shown}"):
            found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        self._files, path = found
        self._top = path.rstrip("/")

    def _at(self, name: str) -> str:
        return f"{self._top}/{name}" if name else self._top

    def names(self, folder: str = "", below: bool = True) -> dict[str, int]:
        with _explained(f"can't list {self.shown}"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._at(folder), maxdepth=None if below else 1, detail=True)
            except FileNotFoundError:
                return {}
        skipped = len(self._top) + 1
        return {name[skipped:]: int(facts["size"] or 0) for name, facts in found.items()}

    def read(self, name: str, most: int) -> bytes:
        with _explained(f"can't read {self.shown}/{name}"):
            local = getattr(self._files, "local_file", False)
            if local and self._files.info(self._at(name))["type"] != "file":
                raise OSError(None, "it is no regular file")
            # As keywords: the second parameter of s3fs is the version of an object.
            data: bytes = self._files.cat_file(self._at(name), start=0, end=most + 1)
            return _limited(data, most)

    def write(self, name: str, data: bytes) -> None:
        with _explained(f"can't write {self.shown}/{name}"):
            try:
                self._files.pipe_file(self._at(name), data)
            except FileNotFoundError:  # object stores have no directories
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(self._at(name), data)

    def remove(self, name: str) -> None:
        with _explained(f"can't remove {self.shown}/{name}"), suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def settle(self) -> None:
        """Do nothing. The file system is responsible for the durability of written data."""


def _limited(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise OSError(None, f"it is larger than the {most:,} bytes that are allowed")
    return data


def sync_folder(folder: Path) -> None:
    """Sync a directory, so that its entries are durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Convert errors to a BackupError that names ``what`` failed. fsspec file systems raise many types."""
    try:
        yield
    except FileNotFoundError as error:
        raise BackupError(f"{what}: it is not there") from error
    except OSError as error:
        raise BackupError(f"{what}: {error.strerror or error}") from error
    except Exception as error:
        raise BackupError(f"{what}: {type(error).__name__}: {error}") from error
