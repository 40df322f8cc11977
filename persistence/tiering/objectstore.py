"""The object store: a directory, or a bucket through fsspec (``s3://``, ``gs://``, ``abfs://``).

Rule 1: no call waits longer than ``seconds`` (``tier-timeout``). Each one runs in a thread of its own. A driver that
hangs is abandoned in that thread, and TimedOutError is raised; the process should then end.
Rule 2: a file appears complete or not at all. A bucket guarantees this. In a directory, a file is written and synced
under another name, which begins with a dot, and then renamed.
Rule 3: ``create`` never replaces a file, even if two processes call it together.
Rule 4: after an error, the next call has another driver, with new connections, which reads the credentials again. They
can have expired.

s3fs reads AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on; every driver reads FSSPEC_<PROTOCOL>='{"option": ...}'.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from persistence.permissions import FOLDER, opener

T = TypeVar("T")

#: Schemes of tier-url, each with the package of its driver.
DRIVERS: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
AZURE: Final = ("abfs", "abfss", "az")


class HistoryStoreError(Exception):
    """Raised if the object store can't be used, refuses a call, or does not answer. A retry may help."""


class TimedOutError(HistoryStoreError):
    """Raised if the object store does not answer in time. The call may still take effect."""


class MissingFileError(HistoryStoreError):
    """Raised if the file does not exist."""


class NotLinkableError(HistoryStoreError):
    """Raised if a store can't link or copy the files of another one."""


def problem_of(url: str) -> str:
    """Return why this can't be a value of ``tier-url``; "" if it can."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "" if url.startswith("/") else "it must be an absolute path or a URL, such as s3://bucket/tide"
    if scheme == "file":
        return "" if rest.startswith("/") else "a file URL needs an absolute path, such as file:///mnt/tide"
    if scheme not in DRIVERS:
        return f"{scheme}:// is not supported: use a directory, s3://, gs://, or abfs://"
    return "" if rest.strip("/") else "the name of the bucket is missing"


def remedy_of(error: BaseException, url: str) -> str:
    """Return what to do about an error of a driver; "" if that is not known, or if its text is sufficient."""
    if "://" not in url or url.startswith("file:"):
        return ""
    response = getattr(error.__cause__ or error, "response", None)  # of botocore
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if code == "RequestTimeTooSkewed":
        return "Correct the clock of this machine, or that of the object store"
    if isinstance(error, PermissionError):
        return "Renew the credentials, or permit the call. The next attempt reads the credentials again"
    return ""


class Files(Protocol):
    """The files below a URL. Names are relative, with slashes. Calls raise OSError or what their driver raises."""

    def names(self, folder: str) -> list[str]: ...
    def read(self, name: str, start: int, end: int | None) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def create(self, name: str, data: bytes) -> None: ...
    def link(self, name: str, files: Files, other: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...
    def remove_unfinished(self, folder: str) -> None: ...
    def size(self, name: str) -> int: ...


class LocalFiles:
    """A directory. A write is durable when it returns."""

    def __init__(self, path: str) -> None:
        self._top = Path(path)

    def names(self, folder: str) -> list[str]:
        return [name for name in os.listdir(self._top / folder) if not name.startswith(".")]

    def read(self, name: str, start: int, end: int | None) -> bytes:
        try:
            with open(self._top / name, "rb") as file:
                file.seek(start)
                return file.read() if end is None else file.read(end - start)
        except FileNotFoundError:
            self._check_mounted()
            raise

    def write(self, name: str, data: bytes) -> None:
        self._put(name, data, os.replace)

    def create(self, name: str, data: bytes) -> None:
        self._put(name, data, os.link)

    def link(self, name: str, files: Files, other: str) -> None:
        if not isinstance(files, LocalFiles):
            raise NotLinkableError("the other prefix is in a bucket")
        self._check_mounted()
        path = self._top / name
        path.parent.mkdir(mode=FOLDER, parents=True, exist_ok=True)
        if not stat.S_ISREG((files._top / other).lstat().st_mode):
            raise NotLinkableError("it is no regular file")
        os.link(files._top / other, path)
        _sync(path.parent)

    def remove(self, name: str) -> None:
        (self._top / name).unlink()

    def remove_folder(self, folder: str) -> None:
        self.remove_unfinished(folder)
        (self._top / folder).rmdir()

    def remove_unfinished(self, folder: str) -> None:
        for file in (self._top / folder).glob(".*"):
            file.unlink(missing_ok=True)

    def size(self, name: str) -> int:
        return (self._top / name).stat().st_size

    def _check_mounted(self) -> None:
        """Raise NotADirectoryError if the directory does not exist. A new one would perhaps be on another disk."""
        if not self._top.is_dir():
            raise NotADirectoryError(f"{self._top} is no directory: mount it, or create it")

    def _put(self, name: str, data: bytes, rename: Callable[[Path, Path], None]) -> None:
        path = self._top / name
        self._check_mounted()
        path.parent.mkdir(mode=FOLDER, parents=True, exist_ok=True)
        temporary = path.parent / f".{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb", opener=opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            rename(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BucketFiles:
    """A bucket, or a prefix in it, through fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(url, skip_instance_cache=True)
        self._files, path = found
        self._top = path.rstrip("/")
        self._kind = type(self._files), self._files.storage_options  # such as the account
        # adlfs has another option for the same condition of the request
        self._exclusive: dict[str, Any] = (
            {"overwrite": False} if url.partition("://")[0] in AZURE else {"mode": "create"}
        )  # fmt: skip

    def names(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        found = self._files.ls(self._at(folder), detail=False)
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def read(self, name: str, start: int, end: int | None) -> bytes:
        data: bytes = self._files.cat_file(self._at(name), start=start or None, end=end)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._files.pipe_file(self._at(name), data)

    def create(self, name: str, data: bytes) -> None:
        self._files.pipe_file(self._at(name), data, **self._exclusive)

    def link(self, name: str, files: Files, other: str) -> None:
        if not isinstance(files, BucketFiles) or files._kind != self._kind:
            raise NotLinkableError("the other prefix is in another kind of store")
        self._files.cp_file(files._at(other), self._at(name))

    def remove(self, name: str) -> None:
        self._files.rm_file(self._at(name))

    def remove_folder(self, folder: str) -> None:
        pass  # it ends with its last file

    def remove_unfinished(self, folder: str) -> None:
        pass  # a file exists once it is complete

    def size(self, name: str) -> int:
        return int(self._files.size(self._at(name)))

    def _at(self, name: str) -> str:
        return f"{self._top}/{name}"


class HistoryStore:
    """The files below a URL, with time limits. Every method may raise HistoryStoreError. After ``open``, any thread may
    use it."""

    def __init__(self, url: str, seconds: float, progress: Callable[[], None]) -> None:
        """``seconds``: the time limit of each call. ``progress``: called before and after each call."""
        self.url: Final = url
        self.seconds = seconds
        self.calls = 0
        self.failed = 0  # calls, including those that exceeded their time
        self._progress = progress
        self._counting = threading.Lock()
        self._opening = threading.Lock()
        self._files: Files | None = None

    def open(self) -> None:
        """Load the driver."""
        self._opened()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; [] if there are none."""
        try:
            return self._call(f"list {folder}", lambda files: files.names(folder))
        except MissingFileError:
            return []

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from ``start`` to before ``end``. Raises MissingFileError."""
        return self._call(f"read {name}", lambda files: files.read(name, start, end))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""
        self._put(f"write {name}", lambda files: files.write(name, data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file. Return False if it exists, which can be the result of an earlier attempt of the driver."""
        try:
            self._put(f"create {name}", lambda files: files.create(name, data))
        except FileExistsError:
            return False
        return True

    def link(self, name: str, store: HistoryStore, other: str) -> None:
        """Give a file of another store the name ``name`` here: with a hard link in a directory, unless the file exists
        here, and with a copy within the bucket, which replaces it. Raises MissingFileError, and HistoryStoreError for
        stores of different kinds or on different file systems."""
        with suppress(FileExistsError):
            self._call(f"link {name} to {other} of {store.url}", lambda files: files.link(name, store._opened(), other))

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory, not a bucket."""
        return self.url.startswith(("/", "file:"))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(MissingFileError):
            self._call(f"remove {name}", lambda files: files.remove(name))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder without files, if it exists."""
        with suppress(MissingFileError):
            self._call(f"remove {folder}", lambda files: files.remove_folder(folder))

    def remove_unfinished(self, folder: str) -> None:
        """Remove what killed processes have left in a folder. Other writes to it that are in progress fail."""
        if self.is_directory:
            self._call(f"remove unfinished files in {folder}", lambda files: files.remove_unfinished(folder))

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises MissingFileError."""
        return self._call(f"find {name}", lambda files: files.size(name))

    def _put(self, what: str, call: Callable[[Files], None]) -> None:
        try:
            self._call(what, call)
        except MissingFileError as error:
            raise HistoryStoreError(f"can't {what}: the bucket of {self.url} does not exist") from error

    def _call(self, what: str, call: Callable[[Files], T]) -> T:
        used: list[Files] = []

        def run() -> T:
            used.append(self._opened())
            return call(used[0])

        with self._counting:
            self.calls += 1
        self._progress()
        try:
            return within(self.seconds, run)
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            raise MissingFileError(f"can't {what}: it does not exist") from error
        except TimeoutError:
            self._failed(used)
            raise TimedOutError(f"can't {what}: no answer within {self.seconds:g} s") from None
        except Exception as error:
            self._failed(used)
            text = f"can't {what}: {type(error).__name__}: {error}"
            if remedy := remedy_of(error, self.url):
                text = f"{text.rstrip('.')}. {remedy}"
            raise HistoryStoreError(text) from error
        finally:
            self._progress()

    def _failed(self, used: list[Files]) -> None:
        """Note that a call has failed. ``used``: its driver, which is replaced if it is that of a bucket (Rule 4)."""
        with self._counting:
            self.failed += 1
        if self._files in used and isinstance(self._files, BucketFiles):
            self._files = None

    def _opened(self) -> Files:
        with self._opening:
            if self._files is None:
                self._files = self._driver()
            return self._files

    def _driver(self) -> Files:
        scheme, separator, rest = self.url.partition("://")
        if not separator or scheme == "file":
            return LocalFiles(rest if separator else self.url)
        try:
            return BucketFiles(self.url)
        except ImportError as error:
            raise HistoryStoreError(
                f"a package is not installed ({error}): pip install 'tidelog[history]' {DRIVERS[scheme]}"
            ) from error


def within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function in a thread of its own. Raises TimeoutError if it has not returned after this time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="object store", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
