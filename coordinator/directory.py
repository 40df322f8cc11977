"""The coordinator `file:`, for members on one machine: a directory (``filesystem`` draws it).

Rule 1: A key and a lease are versions (``versions``): compare-and-set is the creation of the next one.
Rule 2: A lease is dead if its last version is marked as dead, or if it does not exist. A process that finds an expired
        lease, or a free lock of a lease, first creates this last version. Later renewals fail, so a lease remains dead.
Rule 3: A key that is bound to a dead lease is deleted by its first reader.
Rule 4: Keys are synced to disk. Leases are not: they do not outlast the boot that their directory is named for.

The holder of a lease also has a kernel lock (flock) on a file next to the lease. The kernel releases the lock when the
process exits, so the key of a killed leader is deleted at the next poll of a watch. A stopped process keeps its lock.
Its key is deleted when the lease expires, by CLOCK_BOOTTIME.

One thread polls for all watches every 20 ms, since a stall of the disk must not stall the server. It lists the key's
directory, and tries the lock of the lease if the key is bound to one. It reads the key only if something differs, or
if the lease has expired according to its last reading. An error of any kind, also a bug, is one of an unavailable
coordinator: the next poll reads the key again. inotify would not notice that a lease expires, and reports a
closed file before its lock is released.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from . import filesystem, versions
from .clock import boot_id, boottime
from .interface import CoordinatorConfigError, CoordinatorError, Lease, LeaseGoneError, Versioned
from .versions import Outcome

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL: Final = 0.02  # seconds between two polls of a watch
LOCK: Final = "lock"
_DEAD: Final = b"dead"
_LONGEST: Final = 200  # characters of a percent-encoded key: file systems allow 255 in a name


class _Key(NamedTuple):
    """A version of a key. On disk: "value" or "deleted", a blank, the lease's ID or "-", a newline, the value."""

    exists: bool
    lease: str  # empty if the key is not bound to a lease
    value: bytes

    def encode(self) -> bytes:
        return b"%s %s\n%s" % (b"value" if self.exists else b"deleted", self.lease.encode() or b"-", self.value)

    @classmethod
    def decode(cls, content: bytes) -> _Key:
        head, _, value = content.partition(b"\n")
        kind, _, lease = head.partition(b" ")
        return cls(kind == b"value", "" if lease == b"-" else lease.decode(), value)


class DirectoryCoordinator:
    """The coordinator of one process in a directory. The calls run in a thread: they wait for the disk."""

    def __init__(
        self, path: Path, *, timeout: float, create: bool = True, clock: Callable[[], float] = boottime,
        boot: Callable[[], str] = boot_id,
    ) -> None:  # fmt: skip
        """Open the directory; with ``create``, create it if it is missing. Raises CoordinatorConfigError.

        If the directory can't be used now, each call tries to open it again. ``timeout``: seconds that a call may take.
        """
        if not path.is_absolute():
            raise CoordinatorConfigError(f"{path} is a relative path: write file:///absolute/path")
        self._path = path
        self._create = create
        self._timeout = timeout
        self._clock = clock
        try:
            self._leases = path / "leases" / boot()
        except OSError as error:
            raise CoordinatorConfigError(f"file: needs Linux's boot ID ({error}): use etcd:// here") from error
        self._identity: tuple[int, int] | None = None  # of the directory; None: it could not be opened
        with suppress(CoordinatorError, OSError):
            self._open()
        self._locks: dict[str, int] = {}  # descriptors of the locks of leases that were granted here
        self._known: dict[str, tuple[int, _Key]] = {}  # the last version that was read of each key; it never changes
        self._watches: set[_DirectoryWatch] = set()
        self._poller: threading.Thread | None = None
        self._threads = ThreadPoolExecutor(1, "coordinator")
        self._closed = False

    def _open(self) -> None:
        """Open the directory. Raises CoordinatorError, CoordinatorConfigError, OSError."""
        filesystem.prepare(self._path, self._create)
        identity = filesystem.identity(self._path)
        self._leases.mkdir(mode=0o700, exist_ok=True)
        filesystem.remove_leases_of_other_boots(self._leases.parent, self._leases.name)
        self._identity = identity

    async def get(self, key: str) -> Versioned | None:
        """See ``Coordinator.get``."""
        return await self._in_thread(lambda: self._get(key))

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        """See ``Coordinator.swap``."""
        if value is None and version == 0:
            raise ValueError("a key that does not exist cannot be deleted")
        entry = _Key(value is not None, lease.id if lease else "", value or b"")
        return await self._in_thread(lambda: self._swap(key, entry, version))

    async def grant(self, ms: int) -> Lease:
        """See ``Coordinator.grant``."""
        return await self._in_thread(lambda: self._grant(ms))

    async def keep(self, lease: Lease) -> bool:
        """See ``Coordinator.keep``."""
        return await self._in_thread(lambda: self._keep(lease))

    async def revoke(self, lease: Lease) -> None:
        """See ``Coordinator.revoke``."""
        await self._in_thread(lambda: self._revoke(lease.id))

    def watch(self, key: str) -> _DirectoryWatch:
        """See ``Coordinator.watch``."""
        self._directory(key)  # raises ValueError
        watch = _DirectoryWatch(_Poll(self, key).version)
        self._watches.add(watch)
        if self._poller is None:
            self._poller = threading.Thread(target=self._poll, name="coordinator-watch", daemon=True)
            self._poller.start()
        return watch

    def _poll(self) -> None:
        while not self._closed:
            for watch in tuple(self._watches):
                if not watch.poll():
                    self._watches.discard(watch)
            time.sleep(POLL)

    async def close(self) -> None:
        """End all watches, and the leases that were granted here."""
        self._closed = True
        for watch in tuple(self._watches):
            watch.close()
        self._threads.shutdown(wait=False)
        while self._locks:
            os.close(self._locks.popitem()[1])

    # -- calls, in the thread ------------------------------------------------------------------------------------
    async def _in_thread(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise CoordinatorError("the coordinator is closed")
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._checked, call)
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            raise CoordinatorError(f"{self._path} did not answer within {self._timeout:g} s") from None

    def _checked(self, call: Callable[[], T]) -> T:
        """Execute a call; convert the errors of the disk."""
        try:
            if self._identity is None:
                self._open()
            self._check()
            result = call()
            self._check()  # a key that is missing because the directory was removed meanwhile is not deleted
            return result
        except CoordinatorConfigError as error:
            raise CoordinatorError(str(error)) from error
        except FileNotFoundError as error:
            raise CoordinatorError(f"{self._path} was removed while it was in use ({error.filename})") from error
        except OSError as error:
            raise CoordinatorError(f"{self._path}: {error.strerror}") from error
        except versions.DamagedFileError as error:
            raise CoordinatorError(
                f"{error}: stop all members of the group, and restore {self._path} from a backup"
            ) from error

    def _check(self) -> None:
        """Raise CoordinatorError or FileNotFoundError if the directory is not the one that was opened."""
        if filesystem.identity(self._path) != self._identity:
            raise CoordinatorError(f"{self._path} was replaced while it was in use: restart the members")

    def _get(self, key: str) -> Versioned | None:
        version, entry = self._current(key)
        return Versioned(entry.value, version) if entry.exists else None

    def _swap(self, key: str, entry: _Key, version: int) -> int | None:
        newest, current = self._current(key)
        if (newest if current.exists else 0) != version:
            return None
        if entry.exists and entry.lease and not self._alive(entry.lease):
            raise LeaseGoneError(f"the lease of {key} is gone")
        directory = self._directory(key)
        if newest == 0:
            directory.mkdir(mode=0o700, exist_ok=True)
            versions.sync_directory(directory.parent)
        outcome = versions.append(directory, newest, entry.encode(), self._path, sync=True)
        if outcome is Outcome.UNKNOWN:
            raise CoordinatorError(f"{key} was changed several times during a change: its outcome is unknown")
        return newest + 1 if outcome is Outcome.DONE else None

    def _current(self, key: str) -> tuple[int, _Key]:
        """Return the newest version of a key. Deletes the key if its lease is dead."""
        directory = self._directory(key)
        while True:
            newest = max(versions.versions(directory), default=0)
            if newest == 0:
                return 0, _Key(False, "", b"")
            known, entry = self._known.get(key, (0, _Key(False, "", b"")))
            if known != newest:
                newest, content = versions.read(directory)
                entry = _Key.decode(content)
                self._known[key] = newest, entry
            if not entry.exists or not entry.lease or self._alive(entry.lease):
                return newest, entry
            # Synced: a power loss would leave an empty file, which nobody could tell from a damaged one.
            versions.append(directory, newest, _Key(False, "", b"").encode(), self._path, sync=True)

    def _directory(self, key: str) -> Path:
        name = quote(key, safe="")
        if not 0 < len(name) <= _LONGEST or name.startswith("."):
            raise ValueError(f"the key {key!r} cannot be the name of a file of at most {_LONGEST} characters")
        return self._path / "keys" / name

    # -- leases --------------------------------------------------------------------------------------------------
    def _grant(self, ms: int) -> Lease:
        for name in os.listdir(self._leases):
            if not name.startswith(versions.NEW):
                self._alive(name)  # removes those of killed processes
        name = secrets.token_hex(16)
        new = self._leases / f"{versions.NEW}{name}"
        new.mkdir(mode=0o700)
        lock = os.open(new / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            versions.append(new, 0, self._record(ms), self._path, sync=False)
            new.rename(self._leases / name)
        except BaseException:
            os.close(lock)
            shutil.rmtree(new, ignore_errors=True)
            raise
        self._locks[name] = lock
        return Lease(name, ms)

    def _keep(self, lease: Lease) -> bool:
        while True:
            newest = self._alive(lease.id)
            if not newest:
                return False
            try:
                record = self._record(lease.ms)
                if versions.append(self._leases / lease.id, newest, record, self._path, sync=False) is Outcome.DONE:
                    return True
            except FileNotFoundError:
                return False

    def _record(self, ms: int) -> bytes:
        """Return a lease's record: when it expires, in milliseconds of CLOCK_BOOTTIME."""
        return b"%d" % (self._clock() * 1000 + ms)

    def _alive(self, name: str) -> int:
        """Return the newest version of a lease; 0 if it is dead. Whoever finds it expired or unlocked ends it."""
        directory = self._leases / name
        while True:
            newest, record = versions.read(directory)
            if newest == 0:
                return 0
            if record == _DEAD:
                break
            if self._clock() * 1000 < int(record) and self._locked(directory):
                return newest
            try:
                versions.append(directory, newest, _DEAD, self._path, sync=False)
            except FileNotFoundError:  # another process has removed it
                return 0
        self._forget(name)
        return 0

    def _locked(self, directory: Path) -> bool:
        """Whether the process that a lease was granted to lives."""
        try:
            return _locked(str(directory / LOCK))
        except FileNotFoundError:
            return False

    def _revoke(self, name: str) -> None:
        directory = self._leases / name
        try:
            while newest := self._alive(name):
                versions.append(directory, newest, _DEAD, self._path, sync=False)
        except FileNotFoundError:
            pass
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Remove the files of a dead lease, in one step: without a directory, no late renewal can succeed."""
        old = self._leases / f"{versions.NEW}{secrets.token_hex(8)}"
        try:
            (self._leases / name).rename(old)
            shutil.rmtree(old, ignore_errors=True)
        except FileNotFoundError:
            pass
        lock = self._locks.pop(name, None)
        if lock is not None:
            os.close(lock)


def _locked(path: str) -> bool:
    """Whether a process has locked a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # other processes can try at the same time
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class _Poll:
    """The version of a key. It is read only if the files are not those of the last reading."""

    def __init__(self, coordinator: DirectoryCoordinator, key: str) -> None:
        """Prepare the paths. Raises ValueError if the key can't be the name of a file."""
        self._coordinator = coordinator
        self._key = key
        self._directory = str(coordinator._directory(key))
        self._mark = str(coordinator._path / filesystem.FORMAT)
        self._version = 0
        self._names: list[str] | None = None  # in the directory before the last reading; None: there is none
        self._lock = ""  # the path of the lock of its lease; "": it has no lease
        self._expires = 0.0  # ms, by the clock of the leases

    def version(self) -> int:
        """Return the version; 0 if the key never existed. Raises CoordinatorError."""
        with suppress(OSError):
            if self._same():
                return self._version
        self._version = self._coordinator._checked(self._read)
        return self._version

    def _same(self) -> bool:
        """Whether a reading would return the same. Raises OSError."""
        status = os.stat(self._mark)
        return (
            (status.st_dev, status.st_ino) == self._coordinator._identity
            and os.listdir(self._directory) == self._names
            and (not self._lock or (self._coordinator._clock() * 1000 < self._expires and _locked(self._lock)))
        )

    def _read(self) -> int:
        self._names, names = None, None
        with suppress(FileNotFoundError):
            names = os.listdir(self._directory)
        version, entry = self._coordinator._current(self._key)
        lease = self._coordinator._leases / entry.lease
        self._lock = str(lease / LOCK) if entry.lease else ""
        if entry.lease:
            record = versions.read(lease)[1]
            self._expires = float(record) if record.isdigit() else 0.0
        self._names = names
        return version


class _DirectoryWatch:
    """Notifications from the thread that polls the versions of keys."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version``: returns the version; called in the thread. Raises CoordinatorError."""
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        self._seen: int | None = None  # None: nothing was notified yet, or the directory could not be read
        self._bug = ""  # the last unexpected error, so that it is logged once

    def __aiter__(self) -> _DirectoryWatch:
        return self

    async def __anext__(self) -> None:
        await self._changed.wait()
        if self._closed:
            raise StopAsyncIteration
        self._changed.clear()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._changed.set()

    def poll(self) -> bool:
        """Notify if the version differs from that of the last poll. Return whether the watch continues."""
        if self._closed:
            return False
        try:
            version = self._version()
        except CoordinatorError:
            self._seen = None
            return True
        except Exception as error:  # the thread polls for all watches of the member
            if repr(error) != self._bug:
                self._bug = repr(error)
                log.error("Bug in the watch of a key; it is read again: %r", error, exc_info=error)
            self._seen = None
            return True
        if version != self._seen:
            self._seen, self._bug = version, ""
            try:
                self._loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # the loop has ended
                return False
        return True
