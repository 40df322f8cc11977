"""``tidelog backup --continuous``: a base backup, and then the log of the server as it grows.

    connect (PSYNC after the stored log) -> +CONTINUE    follow the log
                                         -> +FULLRESYNC  take a base backup, then follow the log

Rule 1: the server may delete records only after they are at the target. They are acknowledged after their chunk was
        read back.
Rule 2: the process ends only if it is stopped, if its first connection fails, or if another backup took its target.
        It retries everything else: a server that is unreachable, and a target that is unavailable.
Rule 3: memory is bounded: one chunk, and the frames that ``source`` buffers.
Rule 4: nothing is written while the lock is missing. A target that is not mounted is therefore not written to the
        directory under its mount point.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import redis

from tidelog.backup import logstate, ranges
from tidelog.backup.frames import LogPart
from tidelog.backup.lagmonitor import LagMonitor
from tidelog.backup.lock import LockLostError, TargetLock
from tidelog.backup.logstate import LogState
from tidelog.backup.logwriter import LogWriter
from tidelog.backup.manifest import backups, load
from tidelog.backup.merging import RecurringMerge
from tidelog.backup.recurring import RecurringBase
from tidelog.backup.resume import ResumePoint, resume_point
from tidelog.backup.retention import prune
from tidelog.backup.source import BackupSource, LogPosition
from tidelog.backup.take import Report, take_base
from tidelog.backup.targets import BackupError, BackupStoppedError, target_at
from tidelog.operating.tables import size
from tidelog.transport.backoff import Backoff, Delays

BACKOFF: Final = Backoff(first=0.2, most=10.0)
POLL: Final = 0.2  # seconds between two checks of whether the process must stop
MARGIN: Final = 1.0  # seconds of the lag for the interval of the server (0.25 s), POLL, and the write
SHORTEST: Final = 0.1  # seconds for which records are collected at least
INTERVAL: Final = 0.3  # seconds: a little more than the interval in which a server sends its log
STATE_EVERY: Final = 60.0  # seconds between two writes of the state file
MOST_DRAINING: Final = 3.0  # seconds, after a signal
MOST_LAST_ATTEMPTS: Final = 3  # to write the last chunk after a signal

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ContinuousOptions:
    """The options of the command."""

    lag: float  # seconds
    keep: int | None  # base backups
    every: float = 0.0  # seconds between two base backups; 0: only one is taken
    history: str = ""  # see ``take``


class ContinuousBackup:
    """The process. ``say`` prints a line about a rare event; ``stop`` is set by a signal."""

    def __init__(
        self, url: str, target: str, options: ContinuousOptions, say: Say, report: Report, stop: threading.Event
    ) -> None:
        self._url = url
        self._place = target_at(target)
        self._recurring = RecurringBase(url, target, options.every, options.keep, say, stop, options.history)
        self._merge = RecurringMerge(target, say, stop)
        self.monitor = LagMonitor(options.lag, say)
        self._lock = TargetLock(self._place, say, stop.wait, self._behind)
        self._options = options
        self._say = say
        self._report = report
        self._stop = stop
        self._delays = Delays(BACKOFF)
        self._writer: LogWriter | None = None
        self._state_at = 0.0  # monotonic seconds of the last write of the state file
        self.connected = False  # a connection has succeeded
        self._found: ResumePoint | None = None  # where to continue if there is no writer

    def run(self) -> None:
        """Run until ``stop`` is set. Raises BackupError, or redis.RedisError if the first connection fails."""
        with suppress(BackupStoppedError), self._lock:
            self._found = resume_point(self._place)
            while not self._stop.is_set():
                try:
                    self._connection()
                except BackupStoppedError:
                    break
                except LockLostError:
                    raise
                except (BackupError, redis.RedisError, OSError) as error:
                    if not self.connected:
                        raise
                    self._wait(error)
            try:
                self._end()
            finally:
                self.monitor.activity = f"waiting for {self._place.shown}"
                self._recurring.finish()
                self._merge.finish()

    def _behind(self) -> float | None:
        return self.monitor.behind if self.monitor.following else None

    def _wait(self, error: Exception) -> None:
        delay = self._delays.next()
        self.monitor.activity = str(error).rstrip(".")
        if _worth_a_line(self._delays):
            self._say(f"{str(error).rstrip('.')}; connecting to the server again")
        self._stop.wait(delay)

    # -- one connection ------------------------------------------------------------------------------------------
    def _connection(self) -> None:
        """Connect, and follow the log until the process is stopped. Raises BackupError or redis.RedisError if the
        connection is lost."""
        found, after = self._found, None
        if self._writer is not None:
            after = self._writer.position
        elif found is not None:
            after = found.position
        began = datetime.now(UTC)
        self.monitor.activity = "waiting for the server to accept a connection"
        with closing(BackupSource(self._url, True, after, self._stop, not self._options.history)) as source:
            self.connected = True
            if source.continued:
                if self._writer is None and found is not None:
                    self._writer = self._resumed(found)
                self._say(f"following the log from offset {after.offset if after else 0:,} on")
            else:
                if after is not None:
                    self._say(f"{_why_not(source, after)}: a new base backup is taken")
                self._found = None
                self._base(source, began, other=after is not None)
            self._found = None
            if not self._recurring.scheduled:
                self._recurring.taken(self._base_ms())
            assert self._writer is not None  # noqa: S101 - set by both branches
            self.monitor.begin(self._writer.stored)
            self._follow(source, self._writer)

    def _resumed(self, found: ResumePoint) -> LogWriter:
        for chunk in found.damaged:
            self._say(f"{self._place.shown}/{chunk.file} is damaged and is written again")
            self._place.remove(chunk.file)
        return LogWriter(found.log, found.position, found.known, found.previous)

    def _base(self, source: BackupSource, began: datetime, other: bool) -> None:
        """Take a base backup. The log continues in another directory.

        ``other``: the server could not continue the log at the target. One more base backup is kept then: a server that
        has lost its data would otherwise replace the last copy of it.
        """
        if self._writer is not None:
            self._store(self._writer)
            self._writer = None
        self.monitor.pause()
        self._recurring.cancel()  # the new base backup would use files that it is about to remove
        self._lock.check()
        base, new_bytes = take_base(
            source, self._url, began, self._place, self._lock, self._reporting, self._options.history
        )  # fmt: skip
        self._say(f"base backup {base.name}: {size(base.size)}, of which {size(new_bytes)} are new, verified")
        position = LogPosition(base.replid, base.log_offset)
        self._writer = LogWriter(base.name, position, (ranges.ms_of(base.began), base.log_offset))
        self._state_at = 0.0
        self._recurring.taken(ranges.ms_of(base.began))
        if self._options.keep:
            try:
                prune(self._place, self._options.keep + other, self._lock, source.working)
            except LockLostError:
                raise
            except BackupError as error:
                self._say(str(error))

    def _base_ms(self) -> int:
        """Return the time of the newest base backup in ms since the epoch; now if its manifest can't be read."""
        try:
            return ranges.ms_of(load(self._place, backups(self._place)[-1]).began)
        except (BackupError, IndexError):
            return int(time.time() * 1000)

    def _reporting(self, what: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise BackupStoppedError
        self._report(what, done, total)

    def _follow(self, source: BackupSource, writer: LogWriter) -> None:
        """Copy the log until the process is stopped or the connection is lost. Raises BackupError then."""
        try:
            while not self._stop.is_set():
                self._take(source, writer)
                if writer.due(max(SHORTEST, self._options.lag - MARGIN)):
                    self._store(writer)
                    source.stored(writer.stored)
                self.monitor.activity = "waiting for the log of the server"
                self._keep_state(writer)
                self._recurring.check(self._lock)
                self._merge.check()
            self._drain(source, writer)
        finally:
            if not self._stop.is_set():  # the lost connection does not delay what has arrived
                self._store(writer)

    def _take(self, source: BackupSource, writer: LogWriter) -> LogPart | None:
        part = source.take_log(writer.position.offset, POLL)
        if part is not None:
            self._delays.reset()  # not before: a server may accept connections and close each of them
            if writer.must_end(part, source.replid):
                self._store(writer)
            writer.add(part, source.replid)
            if part.ms:
                self.monitor.arrived(part.end)
        return part

    def _drain(self, source: BackupSource, writer: LogWriter) -> None:
        """Copy what the server had logged when the process was asked to stop."""
        began = time.monotonic()
        with suppress(BackupStoppedError, BackupError):  # the end of the process reports what is not at the target
            while (passed := time.monotonic() - began) < MOST_DRAINING:
                part = self._take(source, writer)
                if writer.due(math.inf):
                    self._store(writer)
                if part is not None and part.ms and passed > INTERVAL:
                    break

    # -- the target ----------------------------------------------------------------------------------------------
    def _store(self, writer: LogWriter) -> None:
        """Write the pending records, and retry until that succeeds. Raises BackupStoppedError."""
        if writer.pending:
            self._at_target(lambda: self._written(writer))

    def _written(self, writer: LogWriter) -> None:
        self.monitor.activity = f"waiting for a write to {self._place.shown}"
        self._lock.check()
        # The target can be unmounted between the check and the write.
        chunk = writer.write(self._place, self._lock.check)
        self.monitor.stored(writer.stored)
        if chunk is not None:
            self._merge.add(chunk, self._lock)

    def _keep_state(self, writer: LogWriter) -> None:
        """Write the state file if that is due."""
        if not self._state_at or time.monotonic() - self._state_at >= STATE_EVERY:
            self._at_target(lambda: self._write_state(writer))

    def _write_state(self, writer: LogWriter) -> None:
        self.monitor.activity = f"waiting for a write to {self._place.shown}"
        self._lock.check()
        ms = writer.known[0] if writer.known[1] == writer.stored else 0
        logstate.write(self._place, writer.log, LogState(writer.stored, ms, writer.previous))
        self._state_at = time.monotonic()

    def _at_target(self, work: Callable[[], None]) -> None:
        failures = Delays(BACKOFF)
        while True:
            try:
                work()
            except LockLostError:
                raise
            except BackupError as error:
                self.monitor.activity = str(error)
                delay = failures.next()
                if _worth_a_line(failures):
                    self._say(f"{error}; trying again")
                if self._stop.wait(delay):
                    raise BackupStoppedError from error
                continue
            if failures.failures:
                self._say(f"{self._place.shown} is available again")
            return

    def _end(self) -> None:
        """Write what has arrived. Raises BackupError if that fails."""
        writer = self._writer
        if writer is None:
            self._say("stopped before the base backup was complete")
            return
        for left in range(MOST_LAST_ATTEMPTS - 1, -1, -1):
            try:
                if writer.pending:
                    self._written(writer)
                self._write_state(writer)
                return
            except BackupError as error:
                if isinstance(error, LockLostError) or not left:
                    raise BackupError(f"{error}. {self.unwritten}") from error
                time.sleep(BACKOFF.first)

    @property
    def unwritten(self) -> str:
        """A sentence about what is not at the target, for an error message."""
        if self._writer is None:
            return "There is no new base backup"
        return (
            f"The log after offset {self._writer.stored:,} was not written. The server has it if its journal retains it"
        )


def _worth_a_line(failed: Delays) -> bool:
    """Return whether to report a failure: not each of many."""
    return failed.failures in (1, 10) or failed.failures % 100 == 0


def _why_not(source: BackupSource, after: LogPosition) -> str:
    """Return why the server does not continue after a position."""
    valid = source.points.get(after.replid)
    if valid is None:
        return f"the history of the server is not that of the log up to offset {after.offset:,}"
    if valid < after.offset:
        return f"the server lacks the log from offset {valid:,} on, which was lost in a failover"
    return f"the journal of the server no longer has the log after offset {after.offset:,} (repl-backlog-size)"
