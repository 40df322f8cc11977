"""The files of a history: a directory, or a bucket through fsspec (``s3://``, ``gs://``, ``abfs://``).

The driver of a bucket finds endpoint and credentials in the environment of this process, as the server's driver does:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on, or FSSPEC_S3='{"option": ...}'.

Rule: each call has a time limit. After a call that has exceeded it, all others fail at once for the same time. So the
plan of many streams does not wait for each of them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from tidelog.history.deadline import VARIABLE, default_seconds
from tidelog.history.errors import HistoryError
from tidelog.operating.timelimit import within

#: Schemes of URLs, each with the package of its driver.
DRIVERS: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
AZURE: Final = ("abfs", "abfss", "az")
T = TypeVar("T")

OBJECTS: Final = "objects"  # the folder of the objects


class HistoryFiles:
    """The files below a URL. All methods may be called by several threads, and raise HistoryError."""

    def __init__(self, url: str, seconds: float = 0) -> None:
        """``seconds``: the time limit of each call; 0: that of the environment. Raises HistoryError."""
        self.url: Final = url.rstrip("/")
        self.seconds: Final = seconds or default_seconds()
        self._silent_until = 0.0  # monotonic: until then, calls fail
        scheme, separator, rest = self.url.partition("://")
        self._bucket: Any = None  # None: a directory
        if not separator or scheme == "file":
            self._top = rest if separator else self.url
            return
        try:
            import fsspec

            self._bucket, path = within(self.seconds, lambda: fsspec.core.url_to_fs(self.url))
        except TimeoutError:
            raise self._silent("") from None
        except (ImportError, ValueError) as error:
            package = DRIVERS.get(scheme, scheme)
            raise HistoryError(f"{url}: {error}: pip install 'tidelog[history]' {package}") from None
        except Exception as error:
            raise HistoryError(f"{url}: {type(error).__name__}: {error}") from error
        self._top = path.rstrip("/")

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; [] if there is no such folder."""
        try:
            return self._within(folder, lambda: self._names(folder))
        except FileNotFoundError:
            return []
        except HistoryError:
            raise
        except Exception as error:
            raise self._failed(folder, error) from error

    def _names(self, folder: str) -> list[str]:
        if self._bucket is None:
            return os.listdir(Path(self._top) / folder) if Path(self._top).is_dir() else self._unmounted()
        self._bucket.invalidate_cache()  # another process writes the files
        found = self._bucket.ls(f"{self._top}/{folder}", detail=False)
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from ``start`` to before ``end``."""
        try:
            data = self._within(name, lambda: self._read(name, start, end))
        except HistoryError:
            raise
        except Exception as error:
            raise self._failed(name, error) from error
        if end is not None and len(data) != end - start:
            raise HistoryError(f"{self.url}/{name} is truncated: the bytes {start} to {end} are missing")
        return data

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        if self._bucket is None:
            with open(Path(self._top) / name, "rb") as file:
                file.seek(start)
                return file.read() if end is None else file.read(end - start)
        data: bytes = self._bucket.cat_file(f"{self._top}/{name}", start=start or None, end=end)
        return data

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        try:
            return self._within(name, lambda: self._size(name))
        except HistoryError:
            raise
        except Exception as error:
            raise self._failed(name, error) from error

    def _size(self, name: str) -> int:
        if self._bucket is None:
            return (Path(self._top) / name).stat().st_size
        return int(self._bucket.size(f"{self._top}/{name}"))

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not exist."""
        try:
            self._within(name, lambda: self._create(name, data))
        except HistoryError:
            raise
        except Exception as error:
            raise HistoryError(f"{self.url}/{name} can't be written: {type(error).__name__}: {error}") from error

    def _create(self, name: str, data: bytes) -> None:
        if self._bucket is not None:
            azure = self.url.partition("://")[0] in AZURE
            options = {"overwrite": False} if azure else {"mode": "create"}
            self._bucket.pipe_file(f"{self._top}/{name}", data, **options)
            return
        path = Path(self._top) / name
        owner = (Path(self._top) / "owner.json").stat()
        temporary = path.parent / f".{secrets.token_hex(8)}"
        is_root = os.geteuid() == 0
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
            if is_root:
                os.chown(path.parent, owner.st_uid, owner.st_gid)
        try:
            with open(temporary, "xb") as file:
                os.fchmod(file.fileno(), owner.st_mode & 0o777)
                if is_root:
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)  # the server must be able to read it
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            if self._bucket is None:
                self._within(name, (Path(self._top) / name).unlink)
            else:
                self._within(name, lambda: self._bucket.rm_file(f"{self._top}/{name}"))
        except HistoryError:
            raise
        except Exception as error:
            raise HistoryError(f"{self.url}/{name} can't be removed: {type(error).__name__}: {error}") from error

    def _within(self, name: str, call: Callable[[], T]) -> T:
        """Return the result of a call for a file or folder. Raises HistoryError if it exceeds its time."""
        if time.monotonic() < self._silent_until:
            raise self._silent(name)
        try:
            return within(self.seconds, call)
        except TimeoutError:
            self._silent_until = time.monotonic() + self.seconds
            raise self._silent(name) from None

    def _silent(self, name: str) -> HistoryError:
        return HistoryError(
            f"{self.url}/{name} can't be read: the object store has not answered within {self.seconds:g} s (the limit"
            f" is the option historyTimeout of Spark, and {VARIABLE} in the environment of other programs)"
        )

    def _unmounted(self) -> list[str]:
        raise HistoryError(f"{self.url} does not exist on this machine: mount the directory")

    def _failed(self, name: str, error: Exception) -> HistoryError:
        if isinstance(error, FileNotFoundError):
            hint = ""
            if name.startswith(OBJECTS):
                hint = (
                    ". If its entries were removed since this read was planned, start the read again. Otherwise, the"
                    " object was lost: restore it from a version of the bucket"
                )
            return HistoryError(f"{self.url}/{name} does not exist{hint}")
        remedy = " (is this process permitted to read it?)" if isinstance(error, PermissionError) else ""
        return HistoryError(f"{self.url}/{name} can't be read: {type(error).__name__}: {error}{remedy}")
