"""Permits one writer per target, so that a backup cannot use a chunk that another one is about to remove.

    locks/<random>.json    {"host": "db1", "pid": 4711, "began": 1795248000, "seen": 1795248060}     times: Unix seconds

Rule 1: a writer first writes its lock, then searches for others. If two writers start at the same time, each sees the
        lock of the other, and both fail.
Rule 2: a lock expires when it was not renewed for STALE seconds, or when its process has ended, which only the same
        host
        can detect. An interrupted backup therefore does not block others for long.
Rule 3: a writer whose lock was removed must not complete anything.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from tidelog.backup.targets import BackupError, BackupTarget

FOLDER = "locks"
STALE = 900  # seconds; longer than the transfer of one file
RENEW = 60  # seconds
LONGEST = 4096  # maximum size of a lock in bytes
Time = Annotated[int, Meta(gt=0, lt=1 << 37)]  # Unix seconds before the year 6300


class LockLostError(BackupError):
    """Another backup writes to the target."""


class LockContent(Struct):
    """The content of a lock."""

    host: str
    pid: Annotated[int, Meta(gt=0, lt=1 << 31)]
    began: Time
    seen: Time


class TargetLock:
    """The lock, as a context manager. Raises BackupError if there is another writer."""

    def __init__(self, place: BackupTarget) -> None:
        self._place = place
        self._file = f"{FOLDER}/{secrets.token_hex(8)}.json"
        self._began = int(time.time())
        self._seen = 0.0  # monotonic seconds
        self._renewing = threading.Lock()  # a continuous backup has two threads

    def __enter__(self) -> Self:
        self.renew()
        try:
            for file in self._place.names(FOLDER):
                if file.endswith(".json") and file != self._file:
                    self._look(file)
        except BaseException:
            self._place.remove(self._file)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._place.remove(self._file)
        except BackupError:
            if error is None:
                raise

    def renew(self) -> None:
        """Write the lock again if that is due. Call this often. Raises BackupError."""
        with self._renewing:
            self._renew()

    def _renew(self) -> None:
        now = time.monotonic()
        if self._seen and now - self._seen < RENEW:
            return
        if self._seen:
            self.check()
        content = LockContent(socket.gethostname(), os.getpid(), self._began, int(time.time()))
        self._place.write(self._file, msgspec.json.encode(content))
        self._seen = now

    def check(self) -> None:
        """Raise LockLostError if another writer considered the lock expired. Raise BackupError if the lock is missing
        for another reason, for example because the target is not mounted.
        """
        files = self._place.names(FOLDER)
        if self._file in files:
            return
        if any(file.endswith(".json") for file in files):
            raise LockLostError(f"{self._place.shown}: another backup began because this one was silent for too long")
        raise BackupError(
            f"{self._place.shown}: the lock of this backup is missing: the target is not mounted, or another backup ran"
            " because this one was silent for too long"
        )

    def _look(self, file: str) -> None:
        """Remove the lock of another writer if it has expired. Raises BackupError if it has not."""
        found = _read(self._place, file)
        if found is None:
            return
        if _dead(found):
            self._place.remove(file)
            return
        since = datetime.fromtimestamp(found.began, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise BackupError(
            f"{self._place.shown}: a backup is being written there by process {found.pid} on {found.host},"
            f" since {since}; if that was interrupted, wait {STALE // 60} minutes or remove {file}"
        )


def _read(place: BackupTarget, file: str) -> LockContent | None:
    """Return the content of a lock, or None if it has just been removed."""
    try:
        return msgspec.json.decode(place.read(file, LONGEST), type=LockContent)
    except BackupError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BackupError(f"{place.shown}/{file} is not the lock of a backup: remove it if none is running") from None


def _dead(found: LockContent) -> bool:
    if time.time() - found.seen > STALE:
        return True
    if found.host != socket.gethostname():
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # the process of another user
    return False
