"""The object store: a folder of any fsspec file system (``s3://``, ``gs://``, ``abfs://``, ``file://``, a path).

Endpoint and credentials are configured for the driver: s3fs reads AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on, and
every fsspec file system reads FSSPEC_<PROTOCOL>='{"option": ...}'. The processes that create snapshots inherit both.

Rule 1: No call waits longer than ``patience`` seconds for a response. A driver that hangs is abandoned in its own
        thread, and SnapshotError is raised.
Rule 2: An incomplete upload is aborted, never closed, because closing would complete it. A killed process leaves the
        beginning of its upload: as a file in a folder; on s3 as an incomplete multipart upload, which a lifecycle rule
        of the bucket (AbortIncompleteMultipartUpload) should remove.
Rule 3: In a local folder, writes are durable when the call returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from tidelog.backup.targets import sync_folder
from tidelog.jobs.errors import JobError
from tidelog.operating.timelimit import OverdueError, within

T = TypeVar("T")

PATIENCE: Final = 60.0  # seconds to wait for a response
BLOCK: Final = 16 << 20  # bytes per read, and per part of an upload; s3 accepts at most 10,000 parts
PIECE: Final = 1 << 20  # bytes per call
#: Schemes of stores without folders.
FLAT: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
#: The packages with the drivers.
DRIVERS: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "adl": "adlfs", "sftp": "paramiko", "ssh": "paramiko", "hdfs": "pyarrow",
}  # fmt: skip


class SnapshotError(Exception):
    """The object store rejects requests, is unreachable, or does not respond in time. Retrying later may help."""


class MissingError(SnapshotError):
    """The object does not exist."""


def _within(seconds: float, what: str, function: Callable[..., T], *args: Any) -> T:
    """Call a function. Raises SnapshotError if it has not returned after this many seconds."""
    try:
        return within(seconds, lambda: function(*args))
    except OverdueError:
        raise SnapshotError(f"{what}: no response in {seconds:g} s") from None


class ObjectStore:
    """The objects below a URL. Names are relative, with slashes. Every method may raise SnapshotError.

    Raises JobError if the URL can't be used on this machine: an unknown protocol, or a missing driver.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.shown = shown(url)
        self.patience = patience
        scheme = url.partition("://")[0] if "://" in url else "file"
        self._flat = scheme in FLAT
        self._local = scheme in ("file", "local")
        try:
            import fsspec
        except ImportError:
            raise JobError(f"snapshots at {self.shown} need fsspec: pip install 'tidelog[jobs]'") from None
        try:
            found: tuple[Any, str] = _within(patience, f"can't use {self.shown}", fsspec.core.url_to_fs, url)
        except ImportError as error:
            driver = DRIVERS.get(scheme)
            remedy = f"pip install {driver}" if driver else str(error)
            raise JobError(f"snapshots at {self.shown} need a driver that is not installed here: {remedy}") from None
        except ValueError as error:
            raise JobError(f"{self.shown} is not the URL of an object store: {error}") from None
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"can't use {self.shown}: {_text(error)}") from error
        self._files, path = found
        self._top = path.rstrip("/")

    def names(self, folder: str) -> dict[str, int]:
        """Return the objects directly in a folder, with their sizes in bytes; {} if there are none."""
        return {name: int(facts["size"] or 0) for name, facts in self._listed(folder) if facts["type"] != "directory"}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder; [] if there are none."""
        return [name for name, facts in self._listed(folder) if facts["type"] == "directory"]

    def _listed(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the entries of a folder by name. (``find`` and ``walk`` of fsspec omit what they can't list.)"""

        def find() -> list[tuple[str, dict[str, Any]]]:
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._at(folder), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [(facts["name"].rstrip("/").rpartition("/")[2], facts) for facts in found]

        return self._try(f"can't list {self.shown}/{folder}", find)

    def below(self, folder: str, most: int) -> list[str]:
        """Return at most ``most`` objects in a folder and its subfolders, by their full names."""

        def find() -> list[str]:
            self._files.invalidate_cache()
            found: list[str] = []
            for at, _, files in self._files.walk(self._at(folder)):
                inside = at.removeprefix(self._at(folder)).strip("/")
                found += ["/".join(filter(None, (folder, inside, name))) for name in files if name]
                if len(found) >= most:
                    break
            return found[:most]

        return self._try(f"can't list {self.shown}/{folder}", find)

    def remove_folder(self, folder: str) -> None:
        """Remove the rest of a folder whose objects were removed, if the file system has folders."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._files.rm(self._at(folder), recursive=True)

        if not self._flat:
            self._try(f"can't remove {self.shown}/{folder}", remove)

    def read(self, name: str) -> bytes:
        """Return the content of a small object."""
        data: bytes = self._try(f"can't read {self.shown}/{name}", self._files.cat_file, self._at(name))
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a small object."""

        def put() -> None:
            self._make_folder(name)
            self._files.pipe_file(self._at(name), data)
            self._sync(name)

        self._try(f"can't write {self.shown}/{name}", put)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        self._try(f"can't remove {self.shown}/{name}", remove)

    @contextmanager
    def upload(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Yield a function that writes the pieces of an object, which is complete after the ``with`` block."""
        what = f"can't write {self.shown}/{name}"

        def begin() -> Any:
            self._make_folder(name)
            return self._files.open(self._at(name), "wb", block_size=BLOCK)

        file = self._try(what, begin)
        try:
            yield lambda piece: self._try(what, file.write, piece)
            self._try(what, file.close)
        except BaseException:
            self._abort(file, name)
            raise
        self._try(what, self._sync, name)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        what = f"can't read {self.shown}/{name}"
        file = self._try(what, lambda: self._files.open(self._at(name), "rb", block_size=BLOCK))
        try:
            while piece := self._try(what, file.read, PIECE):
                yield piece
        finally:
            with suppress(Exception):
                _within(5.0, what, file.close)

    def _at(self, name: str) -> str:
        return f"{self._top}/{name}" if self._top else name

    def _make_folder(self, name: str) -> None:
        if not self._flat:
            self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)

    def _sync(self, name: str) -> None:
        """Make a local file durable (Rule 3)."""
        if self._local:
            path = Path(self._at(name))
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(path.parent)

    def _abort(self, file: Any, name: str) -> None:
        """Abort an upload (Rule 2). ``closed`` keeps the garbage collector from closing the file."""
        with suppress(Exception):
            if self._local:
                file.close()
                os.unlink(self._at(name))
            else:
                _within(5.0, "", file.discard if hasattr(file, "discard") else file.close)
        with suppress(Exception):
            file.closed = True

    def _try(self, what: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return _within(self.patience, what, function, *args)
        except SnapshotError:
            raise
        except FileNotFoundError as error:
            raise MissingError(f"{what}: it does not exist ({error})") from error
        except Exception as error:  # drivers raise all kinds of exceptions
            raise SnapshotError(f"{what}: {_text(error)}") from error


def shown(url: str) -> str:
    """Return a URL without its password. (``abfs://container@account`` has none.)"""
    scheme, found, rest = url.partition("://")
    user, at, location = rest.rpartition("@")
    return f"{scheme}://{location}" if found and at and ":" in user else url


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def check(url: str, job: str = "", patience: float = 20.0) -> None:
    """Write, read and delete a small object. Raises JobError with the URL and the remedy if this fails.

    job: the job that uses the store; empty: an engine, for all jobs.
    """
    name = f"{job}/check-{uuid4().hex[:8]}".lstrip("/")
    data = b"written by tidelog to check its permissions; it can be deleted"
    whose = f"job {job!r}: its snapshots" if job else "snapshots"
    try:
        objects = ObjectStore(url, patience)
        objects.write(name, data)
        back = objects.read(name)
        objects.remove(name)
        if back != data:
            raise SnapshotError(f"{objects.shown}/{name} does not contain what was written")
    except (JobError, SnapshotError) as error:
        raise JobError(
            f"{whose} can't be stored at {shown(url)}: {error}. Check the URL, the permissions, and"
            " the options of its driver in the environment (AWS_ENDPOINT_URL, FSSPEC_S3, ...), on every machine"
        ) from None
