"""Permits one writer per target, so that a backup cannot use a chunk that another one is about to remove.

    locks/<random>.json    {"host": "db1", "pid": 4711, "boot": "<boot ID>", "namespace": "pid:[4026531836]",
                            "started": "<clock ticks>", "turn": 3, "beat": 17, "began": 1795248000, "seen": 1795248060}

A continuous backup also writes ``"continuous": true`` and ``behind``: seconds by which the target was behind the server
(see ``lagmonitor``), once it follows the log.

``boot``, ``namespace``, ``pid``, and ``started`` (the start of the process, from /proc) identify a process: containers
can have the same host name, and their processes the same PID. ``turn`` increases with each writer that removes the lock
of another one, and ``beat`` with each renewal. ``began`` and ``seen`` are Unix seconds.

Rule 1: a writer first examines the locks of others. It then writes its own, and searches for others again. If two
        writers start at the same time, each sees the lock of the other, and both fail.
Rule 2: a thread renews the lock every RENEW seconds, because a write to the target can take longer.
Rule 3: a lock is removed at once if its process has provably ended, which only a process in the same PID namespace can
        determine. Otherwise, it is removed if it does not change for LEASE seconds while a new writer watches it. This
        does not compare the clocks of two hosts, except if the lock is older than STALE.
Rule 4: a writer changes nothing after its lease may have expired, without renewing it first. If its lock was removed,
        or another lock has a higher turn, it must not complete anything.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta, Struct

from tidelog.backup.targets import BackupError, BackupStoppedError, BackupTarget

FOLDER: Final = "locks"
LEASE: Final = 60.0  # seconds
RENEW: Final = 15.0  # seconds
MARGIN: Final = 10.0  # seconds before the end of the lease from which the writer renews it before a change
STALE: Final = 900  # seconds; more than the clocks of two hosts differ
POLL: Final = 1.0  # seconds between two reads of a lock that is watched
LONGEST: Final = 4096  # maximum size of a lock in bytes
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also advances while the machine is suspended
Time = Annotated[int, Meta(gt=0, lt=1 << 37)]  # Unix seconds before the year 6300
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]

#: Waits for some seconds. Returns True if the process must stop.
Wait = Callable[[float], bool]


class LockLostError(BackupError):
    """Another backup writes to the target."""


class LockContent(Struct):
    """The content of a lock."""

    host: str
    pid: Annotated[int, Meta(gt=0, lt=1 << 31)]
    began: Time
    seen: Time
    boot: str = ""
    namespace: str = ""
    started: str = ""
    turn: Count = 0
    beat: Count = 0
    continuous: bool = False
    behind: Annotated[float, Meta(ge=0)] | None = None


class TargetLock:
    """The lock, as a context manager. Raises BackupError if there is another writer.

    ``say``: called with a line if the writer waits for the lock of another one to expire; ``wait``: used for that.
    ``behind``: returns the content of this field, for a continuous backup.
    """

    def __init__(
        self,
        place: BackupTarget,
        say: Callable[[str], None] | None = None,
        wait: Wait | None = None,
        behind: Callable[[], float | None] | None = None,
    ) -> None:
        self.log_files = threading.Lock()  # held by a thread that removes files of a log (see ``retention``)
        self._place = place
        self._say = say
        self._wait = wait or threading.Event().wait
        self._file = f"{FOLDER}/{secrets.token_hex(8)}.json"
        now = int(time.time())
        boot, namespace = _boot(), _namespace()
        started = _process(os.getpid())[1]
        self._content = LockContent(socket.gethostname(), os.getpid(), now, now, boot, namespace, started, 1)
        self._content.continuous = behind is not None
        self._behind = behind
        self._renewed = 0.0  # seconds on CLOCK before the last renewal
        self._lost: LockLostError | None = None
        self._changing = threading.Lock()  # for the lock file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="tidelog-backup-lock", daemon=True)

    def __enter__(self) -> Self:
        for file in self._others():
            self._examine(file)
        try:
            self._write()
            for file in self._others():
                found = _read(self._place, file)
                if found is not None:
                    raise self._in_use(found, file)
        except BaseException:
            self._place.remove(self._file)
            raise
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        with self._changing:  # the thread must not write the lock after it was removed
            try:
                self._place.remove(self._file)
            except BackupError:
                if error is None:
                    raise
        self._thread.join()

    def confirm(self) -> None:
        """Renew the lock if its lease may have expired. Call this before each change. Raises BackupError."""
        if self._lost is not None:
            raise self._lost
        if _now() - self._renewed > LEASE - MARGIN:
            self._renew()

    def check(self) -> None:
        """Raise LockLostError if another writer considered the lock expired. Raise BackupError if the lock is missing
        for another reason, for example because the target is not mounted.
        """
        self.confirm()
        with self._changing:
            self._check()

    def _check(self) -> None:
        files = self._place.names(FOLDER)
        others = [file for file in files if file.endswith(".json") and file != self._file]
        shown = self._place.shown
        lost = LockLostError(f"{shown}: another backup began because this one did not renew its lock")
        if self._file not in files:
            if others:
                self._lost = lost
                raise lost
            raise BackupError(
                f"{shown}: the lock of this backup is missing: the target is not mounted, or another backup ran because"
                " this one did not renew its lock"
            )
        for file in others:
            turn = self._content.turn
            with suppress(BackupError):  # not the lock of a backup
                found = _read(self._place, file)
                turn = found.turn if found is not None else turn
            if turn > self._content.turn:
                self._lost = lost
                self._place.remove(self._file)
                raise lost
            if turn < self._content.turn:  # renewed just after it was removed
                self._place.remove(file)

    def _keep(self) -> None:
        while self._lost is None and not self._ended.wait(RENEW):
            with suppress(BackupError):  # see confirm()
                self._renew()

    def _renew(self) -> None:
        with self._changing:
            if not self._ended.is_set():
                self._check()
                expired = _now() - self._renewed > LEASE
                self._write()
                if expired:  # another writer may have begun between the two
                    self._check()

    def _write(self) -> None:
        now, content = _now(), self._content
        content.seen, content.beat = int(time.time()), content.beat + 1
        if self._behind is not None:
            content.behind = self._behind()
        self._place.write(self._file, msgspec.json.encode(content))
        self._renewed = now

    # -- the locks of others -------------------------------------------------------------------------------------
    def _others(self) -> list[str]:
        return [file for file in self._place.names(FOLDER) if file.endswith(".json") and file != self._file]

    def _examine(self, file: str) -> None:
        """Remove the lock of another writer if it has expired. Raises BackupError if it has not."""
        found = _read(self._place, file)
        if found is None:
            return
        dead = _dead(found)
        if dead is None:
            dead = self._expires(file, found)
        if not dead:
            raise self._in_use(found, file)
        self._content.turn = max(self._content.turn, found.turn + 1)
        self._place.remove(file)

    def _expires(self, file: str, found: LockContent) -> bool:
        """Watch a lock. Return whether it does not change for LEASE seconds."""
        if self._say is not None:
            self._say(
                f"waiting for up to {LEASE:g} s: process {found.pid} on {found.host} has a lock, and may have ended"
            )
        until = time.monotonic() + LEASE
        while time.monotonic() < until:
            if self._wait(min(POLL, max(0.0, until - time.monotonic()))):
                raise BackupStoppedError
            seen = _read(self._place, file)
            if seen is None:
                return True
            if seen != found:
                return False
        return True

    def _in_use(self, found: LockContent, file: str) -> BackupError:
        since = datetime.fromtimestamp(found.began, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return BackupError(
            f"{self._place.shown}: a backup is being written there by process {found.pid} on {found.host},"
            f" since {since} ({file})"
        )


def writer(place: BackupTarget) -> LockContent | None:
    """Return the lock of the process that writes to a target; None if there is none, or its process has ended.

    Raises BackupError if the target can't be listed.
    """
    found: LockContent | None = None
    for file in place.names(FOLDER):
        with suppress(BackupError):  # not the lock of a backup
            other = _read(place, file) if file.endswith(".json") else None
            if other is not None and not _dead(other) and (found is None or other.turn > found.turn):
                found = other
    return found


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


def _dead(found: LockContent) -> bool | None:
    """Return whether the process of a lock has ended; None if that can't be determined."""
    if time.time() - found.seen > STALE:
        return True
    if not found.boot or (found.boot, found.namespace) != (_boot(), _namespace()):
        return None
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return None  # the process of another user, perhaps a later one
    state, started = _process(found.pid)
    if not started:
        return None
    return state in "ZX" or started != found.started


def _now() -> float:
    return time.clock_gettime(CLOCK)


def _boot() -> str:
    """Return the boot ID of the machine, which containers share; "" if there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """Return the state of a process (a letter) and its start in clock ticks; two empty texts if they are unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
