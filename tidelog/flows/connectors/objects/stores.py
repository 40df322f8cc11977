"""Lists, reads and writes objects: in a directory, or through an fsspec file system with an asynchronous interface.

Rule 1: An object is complete, or it does not exist under its name.
Rule 2: A call of a remote store that takes longer than the time limit is cancelled.
Rule 3: No error contains a secret of the options. gcsfs quotes an access token in the URL that checks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Coroutine, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote
from uuid import uuid4

from tidelog.operating.redaction import HIDDEN, is_secret

HALF: Final = ".half"  # suffix of a file that is being written
REMOTE: Final = {  # scheme: the package of its file system
    "s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
_VERSIONS: Final = ("ETag", "etag", "generation", "mtime")
_TIMES: Final = ("LastModified", "last_modified", "updated", "mtime", "timeCreated", "creation_time")

SHORTEST: Final = 4  # characters of a secret that is hidden: a shorter one would be found in other words
_SECRET: Final = ("key", "sas", "connection")  # in names of options, in addition to those of ``is_secret``

T = TypeVar("T")


class ListedObject(NamedTuple):
    """An object in a directory."""

    name: str  # the last part of its path
    version: str  # changes if the object is replaced
    modified: float  # s since 1970
    size: int  # bytes


class ObjectStorage(Protocol):
    """Paths have the form BUCKET/NAME, or /NAME for files. All methods raise OSError."""

    async def open(self) -> None:
        """Prepare the store for calls."""

    async def close(self) -> None: ...

    async def entries(self, directory: str) -> tuple[list[ListedObject], list[str]]:
        """Return (objects, names of directories) of a directory. Raises FileNotFoundError."""

    async def read(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to ``end``, or to the end of the object."""

    async def download(self, path: str, target: Path) -> None:
        """Copy an object to a local file."""

    async def write(self, path: str, data: bytes) -> None:
        """Write an object, or replace it."""


class LocalStore:
    """A directory."""

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def entries(self, directory: str) -> tuple[list[ListedObject], list[str]]:
        return await asyncio.to_thread(self._entries, directory)

    def _entries(self, directory: str) -> tuple[list[ListedObject], list[str]]:
        objects, directories = [], []
        with os.scandir(directory or "/") as entries:
            for each in entries:
                if each.is_dir(follow_symlinks=False):
                    directories.append(each.name)
                elif not (each.name.startswith(".") and each.name.endswith(HALF)):
                    try:
                        about = each.stat()
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(about.st_mode):
                        version = f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}"
                        objects.append(ListedObject(each.name, version, about.st_mtime, about.st_size))
        return objects, directories

    async def read(self, path: str, start: int, end: int) -> bytes:
        return await asyncio.to_thread(self._read, path, start, end)

    def _read(self, path: str, start: int, end: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, end - start, start)
        finally:
            os.close(descriptor)

    async def download(self, path: str, target: Path) -> None:
        await asyncio.to_thread(os.symlink, path, target)

    async def write(self, path: str, data: bytes) -> None:
        work = asyncio.ensure_future(asyncio.to_thread(self._write, Path(path), data))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:  # a thread can't be stopped
            await asyncio.gather(work, return_exceptions=True)
            raise

    def _write(self, path: Path, data: bytes) -> None:
        half = path.with_name(f".{uuid4().hex}{HALF}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with half.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            half.rename(path)
        finally:
            half.unlink(missing_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteStore:
    """An fsspec file system. Its calls run in the thread of fsspec, because opening a session takes 200 ms of CPU."""

    def __init__(self, scheme: str, options: Mapping[str, Any], timeout: float) -> None:
        """timeout: time limit of each call in s."""
        self._scheme = scheme
        self._options = options
        self._timeout = timeout
        self._secrets = tuple(_secrets(options))
        self._files: Any = None

    async def open(self) -> None:
        await self.close()
        kind = file_system(self._scheme, self._options)
        options = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
        if self._scheme == "s3":  # the runtime tries again, and repeated attempts would hide the error
            options["config_kwargs"] = {"retries": {"total_max_attempts": 1}} | options.get("config_kwargs", {})
        try:
            self._files = await asyncio.to_thread(partial(kind, **options))
        except Exception as error:
            shown = self._shown(error)
            if shown is error:
                raise
            raise shown from None
        self._files.retries = 1  # of s3fs and gcsfs

    async def close(self) -> None:
        files, self._files = self._files, None
        if hasattr(files, "set_session"):
            with contextlib.suppress(Exception):  # the session may be lost
                await self._limited(files, _close_session(files))

    async def entries(self, directory: str) -> tuple[list[ListedObject], list[str]]:
        objects, directories = [], []
        for each in await self._call("_ls", directory, detail=True):
            path = each["name"].rstrip("/")
            name = path.rpartition("/")[2]
            if path == directory.rstrip("/") and each["type"] == "directory":
                continue
            if each["type"] == "directory":
                directories.append(name)
            elif not each["name"].endswith("/"):  # an empty object that represents a directory
                size = int(each["size"] or 0)
                version = next((str(each[key]) for key in _VERSIONS if each.get(key)), "")
                objects.append(ListedObject(name, f"{version}-{size}", _time(each), size))
        return objects, directories

    async def read(self, path: str, start: int, end: int) -> bytes:
        return bytes(await self._call("_cat_file", path, start=start, end=end))

    async def download(self, path: str, target: Path) -> None:
        await self._call("_get_file", path, str(target))

    async def write(self, path: str, data: bytes) -> None:
        await self._call("_pipe_file", path, data)

    async def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Return the result of a method. Raises OSError: libraries of file systems raise many types."""
        files = self._files
        if files is None:
            raise ConnectionError("not connected")
        try:
            return await self._limited(files, getattr(files, name)(*arguments, **named))
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._timeout:g} s") from None
        except Exception as error:
            shown = self._shown(error)
            if shown is error:
                raise
            raise shown from None

    def _shown(self, error: Exception) -> OSError:
        """Return an error as an OSError without secrets."""
        text = shown = str(error)
        for each in self._secrets:
            shown = shown.replace(each, HIDDEN)
        if isinstance(error, OSError) and shown == text:
            return error
        line = (shown.splitlines() or ["no reason"])[0]  # further lines of Azure are the answer in XML
        return ConnectionError(line if isinstance(error, ConnectionError) else f"{type(error).__name__}: {line}")

    async def _limited(self, files: Any, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the file system. Raises TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, files.loop)
        async with asyncio.timeout(self._timeout):
            return await asyncio.wrap_future(future)


def _secrets(given: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield the secrets in options, in the forms in which errors contain them, the longest first."""
    if isinstance(given, Mapping):
        for name, each in given.items():
            yield from _secrets(each, secret=secret or is_secret(str(name)) or any(one in name for one in _SECRET))
    elif secret and isinstance(given, str):
        parts = (each.partition("=") for each in given.split(";"))  # of a connection string
        for each in [given, *(value for name, _, value in parts if name.lower().endswith(("key", "signature")))]:
            if len(each) >= SHORTEST:
                yield from dict.fromkeys((quote(each, safe=""), quote(each), each))


async def _close_session(files: Any) -> None:
    session = getattr(files, "_s3", None) or getattr(files, "_session", None)
    if session is not None:
        await session.close()


def file_system(scheme: str, options: Mapping[str, Any]) -> Any:
    """Return the class of a file system. Raises ImportError if its package is missing.

    The default class of gcsfs first asks a server of Google for the type of the bucket. With another server, such as an
    emulator, the call would not return.
    """
    import fsspec

    if scheme in ("gs", "gcs") and options.get("endpoint_url"):
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem
    return fsspec.get_filesystem_class(scheme)


def _time(about: Mapping[str, Any]) -> float:
    """Return the time of the last change in s since 1970. 0: unknown."""
    for key in _TIMES:
        found = about.get(key)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, (int, float)):
            return float(found)
        if isinstance(found, str):
            try:
                return datetime.fromisoformat(found).timestamp()
            except ValueError:
                continue
    return 0.0
