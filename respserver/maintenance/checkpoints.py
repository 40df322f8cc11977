"""Schedules and runs checkpoints. A capture is taken on the loop in small parts and written in a thread. Its memory is
then freed on the loop in small parts.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

from commands.session import Session
from resp import errors
from resp.errors import CommandError, CorruptError
from respserver.observe.stats import Saves
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from storage.keyspace.changes import EVERYTHING
from storage.streams.capture import Capture

RETRY_MS = 5000  # after a failed checkpoint
PART = 64  # keys that are captured or freed in one turn of the loop, which takes about 100 microseconds
REST_MS = 2000  # between two returns of memory, because a busy server soon needs freed memory again
NEGLIGIBLE = 64 << 10  # bytes of the log for which recent() does not run a checkpoint
PATIENCE = 3.0  # seconds that recent() waits, because a replica expects an answer


class Checkpoints(ServerPart):
    """Runs checkpoints, one at a time. Implements ``CheckpointsPart``.

    For INFO, those that BGREWRITEAOF began are ``rewrites``, and all others are ``saves``.
    """

    def __init__(self, parts: RuntimeParts, retain: Callable[[], None], ended: Callable[[], None]) -> None:
        """Initialize. ``retain``: called before a checkpoint truncates the journal, to set the part that must be
        retained. ``ended``: called after a checkpoint that ran in the background."""
        super().__init__(parts)
        self._retain = retain
        self._on_end = ended
        self._outcome: list[str] = []  # error text of the running checkpoint, or ""; no item until it ends
        self.saves = Saves(last=parts.clock.now() // 1000)
        self._saved_at = parts.clock.mono()  # ms of the last save, or of startup
        self.rewrites = Saves()
        self._current = self.saves  # stats of the running checkpoint, or of the last one
        self._task: asyncio.Future[None] | None = None
        self._wanted = False  # schedule() was called
        self._rewrite_wanted = False  # for BGREWRITEAOF
        self._not_before = 0  # ms (monotonic); set after a failure
        self._synced = 0  # ms (monotonic) of the last sync of everysec
        self._sync: asyncio.Future[None] | None = None
        self._freed = False  # there is memory to return
        self._next_return = 0  # ms (monotonic) before which no memory is returned

    # -- for commands ----------------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        return self._task is not None

    @property
    def rewriting(self) -> bool:
        return self.rewrites.running

    @property
    def rewrite_scheduled(self) -> bool:
        return self._rewrite_wanted

    def save(self, session: Session) -> Callable[[], str | None]:
        if not self.begin(session, rewrite=False):
            raise CommandError(errors.SAVE_RUNNING)
        outcome = self._outcome
        return lambda: outcome[0] if outcome else None

    def save_now(self, session: Session) -> None:
        """Write a checkpoint before returning. ``session`` as for begin(). Raises CommandError."""
        self._ticks.note_write(session)
        try:
            self.run_now()
        except (OSError, CorruptError) as error:
            raise CommandError(f"ERR the checkpoint failed: {_why(error)}") from error

    def begin(self, session: Session, rewrite: bool) -> bool:
        if self._task is not None:
            return False
        self._ticks.note_write(session)
        try:
            self._start(rewrite)
        except OSError as error:
            raise CommandError(f"ERR the checkpoint failed: {_why(error)}") from error
        return True

    def schedule(self, rewrite: bool, wanted: bool = True) -> None:
        """Start a checkpoint as soon as possible, or not any more."""
        if rewrite:
            self._rewrite_wanted = wanted
        else:
            self._wanted = wanted

    async def recent(self) -> None:
        """Let the store contain most of the log: run a checkpoint if it lacks more than NEGLIGIBLE bytes.

        Returns after PATIENCE seconds even if the checkpoint has not ended, and also if it fails.
        """
        disk = self._data.disk
        if self._task is None and disk.offset - disk.store.offset > NEGLIGIBLE:
            try:
                self._start(rewrite=False)
            except OSError as error:
                self._logger.warning(f"A copy for a replica begins without a checkpoint: {_why(error)}")
        if self._task is not None:
            await asyncio.wait([self._task], timeout=min(PATIENCE, self._config.repl_timeout / 2))

    async def covering(self, offset: int) -> None:
        """Return when the store has this log offset. Raises OSError if it can't be written."""
        disk = self._data.disk
        for _ in range(2):  # the first one may have begun before the offset
            if disk.store.offset >= offset:
                return
            if self._task is None:
                self._start(rewrite=False)
            if self._task is not None:
                await asyncio.wait([self._task])
        if disk.store.offset < offset:
            raise OSError("a checkpoint has failed; the log says why")

    def make_room(self) -> None:
        """Start a checkpoint as soon as possible, unless one is running, so that nodes can leave memory."""
        if self._task is None:
            self._wanted = True

    def refused(self) -> str | None:
        return self._data.disk.check_files()

    def last(self) -> int:
        return self.saves.last

    # -- one checkpoint --------------------------------------------------------------------------------------
    def _start(self, rewrite: bool) -> None:
        """Start a checkpoint in the background; none is running. Raises OSError."""
        self.schedule(rewrite, wanted=False)
        offset = self._freeze(self.rewrites if rewrite else self.saves)
        self._outcome = []
        self._task = self._loop.create_task(self._run(self._data.ks.begin_capture(), offset))

    async def _run(self, capture: Capture, offset: int) -> None:
        """Run a checkpoint in the background. ``capture`` has just begun."""
        disk, changes = self._data.disk, self._data.ks.changes
        began = self._clock.mono()
        problem: BaseException | None = None
        try:
            while not changes.more(PART):  # noqa: ASYNC110 - does not wait: lets other callbacks run
                await asyncio.sleep(0)
            await in_thread(lambda: disk.checkpoint(capture, offset))
            capture.flushed = False  # the flush is complete, even if a later step fails
            disk.renew_view()  # if this fails, the captured state stays in memory and is written again
            while not changes.stored(capture, PART):  # noqa: ASYNC110
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - after any error, the next checkpoint must store all of it
            problem = error
        self._task = None
        self._ended(capture, problem, began)
        self._outcome.append("" if problem is None else f"ERR the checkpoint failed: {_why(problem)}")
        self._on_end()
        self._freed = True
        self._return_memory(self._clock.mono())

    def run_now(self) -> None:
        """Write a checkpoint before returning. Raises OSError, CorruptError, and CommandError if one is running."""
        if self._task is not None:
            raise CommandError(errors.SAVE_RUNNING)
        offset = self._freeze(self.saves)
        disk, changes = self._data.disk, self._data.ks.changes
        began = self._clock.mono()
        capture = self._data.ks.begin_capture()
        try:
            changes.more(EVERYTHING)
            disk.checkpoint(capture, offset)
            capture.flushed = False  # as in _run()
            disk.renew_view()
            changes.stored(capture, EVERYTHING)
        except Exception as error:
            self._ended(capture, error, began)
            raise
        self._ended(capture, None, began)
        trim_memory()

    def _return_memory(self, mono: int) -> None:
        """Return memory that checkpoints have freed, at most every REST_MS."""
        if mono >= self._next_return:
            with suppress(RuntimeError, MemoryError):  # no thread is available; retried later
                self._loop.run_in_executor(None, trim_memory)
                self._freed, self._next_return = False, mono + REST_MS

    async def finish(self) -> None:
        """Wait for a running checkpoint and a running sync."""
        while (task := self._task or self._sync) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # let its callbacks run
            if task is self._sync:
                self._sync = None

    def _freeze(self, stats: Saves) -> int:
        """Commit all records; return the log offset of a capture that begins now. Raises OSError."""
        problem = self._data.disk.check_files()
        if problem is not None:
            raise OSError(errno.ENOENT, problem)
        if not self._ticks.settle():
            raise OSError("the last write could not be made durable")
        self._retain()
        self._current = stats
        stats.running = True
        stats.started = self._clock.now() // 1000
        return self._data.disk.offset

    def _ended(self, capture: Capture, error: BaseException | None, began: int) -> None:
        stats, took = self._current, self._clock.mono() - began
        stats.running = False
        stats.last_ok = error is None
        stats.last_seconds = took // 1000
        if error is None:
            self._saved_at = self._clock.mono()
            self.saves.last = self._clock.now() // 1000  # also after a rewrite, which saves the changes before it
            stats.count += 1
            self._logger.verbose(f"Checkpoint done in {took} ms")
        else:
            self._data.ks.changes.failed(capture)
            self._not_before = self._clock.mono() + RETRY_MS
            self._logger.warning(
                f"Checkpoint failed, the journal retains everything; next attempt in 5 seconds: {_why(error)}"
            )

    # -- when ------------------------------------------------------------------------------------------------
    def on_time(self, mono: int) -> None:
        """Start a checkpoint if one is due; under everysec, sync once a second. Called ``hz`` times a second.

        ``mono``: ms, monotonic.
        """
        disk = self._data.disk
        if disk.pending_sync and mono - self._synced >= 1000 and (self._sync is None or self._sync.done()):
            self._synced = mono
            self._begin_sync()
        if self._freed:
            self._return_memory(mono)
        if self._task is None and mono >= self._not_before and self._due(mono):
            try:
                self._start(self._rewrite_wanted)
            except OSError as error:
                self._not_before = mono + RETRY_MS
                self._logger.warning(f"Checkpoint postponed: {_why(error)}")

    def _due(self, mono: int) -> bool:
        ks, disk = self._data.ks, self._data.disk
        if self._wanted or self._rewrite_wanted:
            return True
        if disk.wants_checkpoint(len(ks.changes.streams)):
            return True
        changed, since = ks.changes.count, (mono - self._saved_at) // 1000
        return bool(changed) and any(
            changed >= changes and since >= seconds for seconds, changes in self._config.save_points
        )

    def _begin_sync(self) -> None:
        try:
            self._sync = in_thread(self._data.disk.sync)
            self._sync.add_done_callback(lambda task: self._log_sync(task.exception()))
        except (RuntimeError, MemoryError) as error:  # no thread is available; retried in a second
            self._log_sync(error)

    def _log_sync(self, error: BaseException | None) -> None:
        if error is not None:
            self._logger.warning(f"Syncing the log failed: {error}")


def _why(error: BaseException) -> str:
    """Return the text of the error, without its errno."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)


def trim_memory() -> None:
    """Return freed memory to the system: malloc_trim(). Thread-safe; takes some milliseconds without the GIL.

    glibc retains freed memory between blocks in use, which can be tens of megabytes after many appends. Checkpoints
    free more memory at a time than anything else, that of the nodes that they have stored. Does nothing without glibc.
    """
    try:
        import ctypes  # imported here, because it is rarely needed

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return
    trim(ctypes.c_size_t(0))
