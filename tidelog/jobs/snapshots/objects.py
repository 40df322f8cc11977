"""The object store: a folder of any file system of fsspec (``s3://``, ``gs://``, ``abfs://``, ``file://``, a path).

Where s3 keeps its endpoint and keys is the driver's own matter: s3fs reads AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so
on, and every file system of fsspec reads FSSPEC_<PROTOCOL>='{"option": ...}'. Both are passed on to the processes that
make snapshots.

Rule 1: nothing waits for longer than ``patience`` seconds for one answer. A driver that hangs is left behind in a
        thread of its own, and SnapshotError says so.
Rule 2: an upload that was not completed is aborted, never closed: closing would complete it. What a killed process has
        begun stays behind: as a file in a folder, as an incomplete multipart upload on s3, which a lifecycle rule of
        the bucket (AbortIncompleteMultipartUpload) should remove.
Rule 3: in a local folder, what was written is on the disk when the call returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from tidelog.backup.targets import sync_folder
from tidelog.jobs.errors import JobError

T = TypeVar("T")

PATIENCE: Final = 60.0  # seconds for one answer
BLOCK: Final = 16 << 20  # bytes of a part of an upload, and of a read: s3 takes 10,000 parts at most
PIECE: Final = 1 << 20  # bytes that are handed over at a time
#: What has no folders: nothing is made there but objects.
FLAT: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
#: The packages that have the drivers.
DRIVERS: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "adl": "adlfs", "sftp": "paramiko", "ssh": "paramiko", "hdfs": "pyarrow",
}  # fmt: skip


class SnapshotError(Exception):
    """The object store refuses, is not reached, or does not answer in time. Trying again later may help."""


class MissingError(SnapshotError):
    """There is no such object."""


def within(seconds: float, what: str, function: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of its own. SnapshotError if it has not returned after so many seconds."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=call, name="snapshots", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    if errors:
        raise errors[0]
    raise SnapshotError(f"{what}: no answer in {seconds:g} s")


class ObjectStore:
    """The objects below a URL. Names are relative, with slashes. Every method raises SnapshotError.

    JobError where the URL can't be used on this machine at all: an unknown protocol, a driver that is not installed.
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
            found: tuple[Any, str] = within(patience, f"can't use {self.shown}", fsspec.core.url_to_fs, url)
        except ImportError as error:
            driver = DRIVERS.get(scheme)
            remedy = f"pip install {driver}" if driver else str(error)
            raise JobError(f"snapshots at {self.shown} need a driver that is not installed here: {remedy}") from None
        except ValueError as error:
            raise JobError(f"{self.shown} is no URL of an object store: {error}") from None
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"can't use {self.shown}: {_text(error)}") from error
        self._files, path = found
        self._top = path.rstrip("/")

    def names(self, folder: str) -> dict[str, int]:
        """The objects right in a folder, with their sizes in bytes; {} if there are none."""

        def find() -> dict[str, Any]:
            self._files.invalidate_cache()
            try:
                return dict(self._files.find(self._at(folder), maxdepth=1, detail=True))
            except FileNotFoundError:
                return {}

        found = self._try(f"can't list {self.shown}/{folder}", find)
        return {name.rpartition("/")[2]: int(facts["size"] or 0) for name, facts in found.items()}

    def folders(self, folder: str) -> list[str]:
        """The names of the folders right in a folder; [] if there are none."""

        def find() -> list[str]:
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._at(folder), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory"]

        return self._try(f"can't list {self.shown}/{folder}", find)

    def below(self, folder: str, most: int) -> list[str]:
        """Objects in a folder, and in those in it, ``most`` of them at most. Names as of all methods here."""

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
        """Remove what is left of a folder whose objects were removed, where there are folders."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._files.rm(self._at(folder), recursive=True)

        if not self._flat:
            self._try(f"can't remove {self.shown}/{folder}", remove)

    def read(self, name: str) -> bytes:
        """A small object."""
        data: bytes = self._try(f"can't read {self.shown}/{name}", self._files.cat_file, self._at(name))
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a small object, or replace it."""

        def put() -> None:
            self._make_folder(name)
            self._files.pipe_file(self._at(name), data)
            self._settle(name)

        self._try(f"can't write {self.shown}/{name}", put)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        self._try(f"can't remove {self.shown}/{name}", remove)

    @contextmanager
    def upload(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Write an object piece by piece with the function that this yields. It is complete after the ``with``."""
        what = f"can't write {self.shown}/{name}"

        def begin() -> Any:
            self._make_folder(name)
            return self._files.open(self._at(name), "wb", block_size=BLOCK)

        file = self._try(what, begin)
        try:
            yield lambda piece: self._try(what, file.write, piece)
            self._try(what, file.close)
        except BaseException:
            self._abandon(file, name)
            raise
        self._try(what, self._settle, name)

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of an object, piece by piece."""
        what = f"can't read {self.shown}/{name}"
        file = self._try(what, lambda: self._files.open(self._at(name), "rb", block_size=BLOCK))
        try:
            while piece := self._try(what, file.read, PIECE):
                yield piece
        finally:
            with suppress(Exception):
                within(5.0, what, file.close)

    def _at(self, name: str) -> str:
        return f"{self._top}/{name}" if self._top else name

    def _make_folder(self, name: str) -> None:
        if not self._flat:
            self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)

    def _settle(self, name: str) -> None:
        """Rule 3."""
        if self._local:
            path = Path(self._at(name))
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(path.parent)

    def _abandon(self, file: Any, name: str) -> None:
        """Rule 2. ``closed`` keeps the garbage collector from closing the file."""
        with suppress(Exception):
            if self._local:
                file.close()
                os.unlink(self._at(name))
            else:
                within(5.0, "", file.discard if hasattr(file, "discard") else file.close)
        with suppress(Exception):
            file.closed = True

    def _try(self, what: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return within(self.patience, what, function, *args)
        except SnapshotError:
            raise
        except FileNotFoundError as error:
            raise MissingError(f"{what}: it is not there ({error})") from error
        except Exception as error:  # drivers raise all kinds
            raise SnapshotError(f"{what}: {_text(error)}") from error


def shown(url: str) -> str:
    """A URL without a password. (``abfs://container@account`` has none.)"""
    scheme, found, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}://{place}" if found and at and ":" in user else url


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def check(url: str, job: str = "", patience: float = 20.0) -> None:
    """Write, read and delete a small object. JobError, naming the job, the URL and the remedy, if one of them fails.

    job: whose store it is; empty: an engine's, for all jobs.
    """
    name = f"{job}/check-{uuid4().hex[:8]}".lstrip("/")
    data = b"written by tidelog to see whether it can write here; it can be deleted"
    whose = f"job {job!r}: its snapshots" if job else "snapshots"
    try:
        objects = ObjectStore(url, patience)
        objects.write(name, data)
        back = objects.read(name)
        objects.remove(name)
        if back != data:
            raise SnapshotError(f"{objects.shown}/{name} has not what was written")
    except (JobError, SnapshotError) as error:
        raise JobError(
            f"{whose} can't be kept at {shown(url)}: {error}. Check the URL, that it can be written"
            " to, and the options of its driver in the environment (AWS_ENDPOINT_URL, FSSPEC_S3, ...), on every machine"
        ) from None
