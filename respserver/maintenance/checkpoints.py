"""When checkpoints begin, and how one runs: a capture is taken on the loop in small parts and written in a thread. Then
its memory is freed on the loop in small parts."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

from commands.session import Session
from resp import errors
from resp.errors import CommandError, CorruptError
from respserver.maintenance.malloc import give_back
from respserver.observe.stats import Saves
from respserver.runtime.parts import RuntimeParts
from respserver.runtime.threads import in_thread
from storage.keyspace.changes import EVERYTHING
from storage.streams.capture import Capture

RETRY_MS = 5000  # after a failed checkpoint
PART = 64  # keys that are captured, or freed, in one turn of the loop: about 100 microseconds
REST_MS = 2000  # between two times that memory is returned: what a busy server frees it needs again at once
DRAFTS = 32 << 20  # a checkpoint begins when drafts take this many bytes of memory


class Checkpoints:
    """Runs checkpoints, one at a time. Implements ``CheckpointsPart``.

    For INFO, those that BGREWRITEAOF began are ``rewrites``, and all others are ``saves``.
    """

    def __init__(self, parts: RuntimeParts, retain: Callable[[], None], ended: Callable[[], None]) -> None:
        """``retain``: called before a checkpoint cuts the journal, to set what the journal must keep. ``ended``: called
        after one that ran in the background."""
        self._loop = parts.loop
        self._config = parts.config
        self._clock = parts.clock
        self._data = parts.data
        self._ticks = parts.ticks
        self._logger = parts.logger
        self._retain = retain
        self._on_end = ended
        self._outcome: list[str] = []  # of the running one: the text of its error, or empty; nothing until it ends
        self.saves = Saves(last=parts.clock.now() // 1000)
        self.rewrites = Saves()
        self._current = self.saves  # of the checkpoint that is running, or was the last one
        self._task: asyncio.Future[None] | None = None
        self._wanted = False  # schedule() was called
        self._rewrite_wanted = False  # for BGREWRITEAOF
        self._not_before = 0  # ms (monotonic); set after a failure
        self._synced = 0  # ms (monotonic) of the last sync of everysec
        self._sync: asyncio.Future[None] | None = None
        self._freed = False  # memory is to be returned
        self._next_return = 0  # ms (monotonic); not before

    # -- for commands ----------------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        return self._task is not None

    @property
    def rewriting(self) -> bool:
        """Whether one for BGREWRITEAOF is running."""
        return self.rewrites.running

    @property
    def rewrite_scheduled(self) -> bool:
        return self._rewrite_wanted

    def save(self, session: Session) -> Callable[[], str | None]:
        """SAVE: begin() one; others are served while it runs. Returns what tells how it ended, None until then."""
        if not self.begin(session, rewrite=False):
            raise CommandError(errors.SAVE_RUNNING)
        outcome = self._outcome
        return lambda: outcome[0] if outcome else None

    def save_now(self, session: Session) -> None:
        """Write one before returning. ``session`` as for begin(). Raises CommandError."""
        self._ticks.note_write(session)
        try:
            self.run_now()
        except (OSError, CorruptError) as error:
            raise CommandError(f"ERR the checkpoint failed: {_why(error)}") from error

    def begin(self, session: Session, rewrite: bool) -> bool:
        """BGSAVE, BGREWRITEAOF. Returns False if one is running. The writes of ``session``, the caller, are in it.

        Raises CommandError.
        """
        if self._task is not None:
            return False
        self._ticks.note_write(session)
        try:
            self._start(rewrite)
        except OSError as error:
            raise CommandError(f"ERR the checkpoint failed: {_why(error)}") from error
        return True

    def schedule(self, rewrite: bool) -> None:
        """Start one as soon as possible."""
        if rewrite:
            self._rewrite_wanted = True
        else:
            self._wanted = True

    def make_room(self) -> None:
        """Start one as soon as possible, unless one is running, so that nodes leave memory."""
        if self._task is None:
            self._wanted = True

    def refused(self) -> str | None:
        """Why none can be written: the files are not where they were. None otherwise."""
        return self._data.disk.check_files()

    def last(self) -> int:
        """Unix seconds of the last successful one, or of the start."""
        return self.saves.last

    # -- one checkpoint --------------------------------------------------------------------------------------
    def _start(self, rewrite: bool) -> None:
        """Start one in the background while none is running. Raises OSError."""
        if rewrite:
            self._rewrite_wanted = False
        else:
            self._wanted = False
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
            capture.flushed = False  # that is done, whatever fails from here on
            disk.renew_view()  # if this fails, what was captured stays in memory and is written again
            while not changes.stored(capture, PART):  # noqa: ASYNC110
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - after any error the next one must store all of it
            problem = error
        self._task = None
        self._ended(capture, problem, began)
        self._outcome.append("" if problem is None else f"ERR the checkpoint failed: {_why(problem)}")
        self._on_end()
        self._freed = True
        self._return_memory(self._clock.mono())

    def run_now(self) -> None:
        """Write one before returning. Raises OSError, CorruptError, and CommandError if one runs in the background."""
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
        give_back()

    def _return_memory(self, mono: int) -> None:
        """Return memory that checkpoints have freed, if it is time for that."""
        if mono >= self._next_return:
            with suppress(RuntimeError, MemoryError):  # no thread for it: tried again
                self._loop.run_in_executor(None, give_back)
                self._freed, self._next_return = False, mono + REST_MS

    async def finish(self) -> None:
        """Wait for a running checkpoint and a running sync."""
        while (task := self._task or self._sync) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # let its callbacks run
            if task is self._sync:
                self._sync = None

    def _freeze(self, stats: Saves) -> int:
        """Commit all records; returns the log offset of a capture that begins now. Raises OSError."""
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
            self.saves.last = self._clock.now() // 1000  # also after a rewrite: the changes before it are saved
            stats.count += 1
            self._logger.verbose(f"Checkpoint done in {took} ms")
        else:
            self._data.ks.changes.failed(capture)
            self._not_before = self._clock.mono() + RETRY_MS
            self._logger.warning(
                f"Checkpoint failed, the journal keeps everything; next try in 5 seconds: {_why(error)}"
            )

    # -- when ------------------------------------------------------------------------------------------------
    def on_time(self, now: int) -> None:
        """Called ``hz`` times a second: start a checkpoint if one is due; under everysec, sync once a second."""
        mono, disk = self._clock.mono(), self._data.disk
        if disk.pending_sync and mono - self._synced >= 1000 and (self._sync is None or self._sync.done()):
            self._synced = mono
            self._begin_sync()
        if self._freed:
            self._return_memory(mono)
        if self._task is None and mono >= self._not_before and self._due(now):
            try:
                self._start(self._rewrite_wanted)
            except OSError as error:
                self._not_before = mono + RETRY_MS
                self._logger.warning(f"Checkpoint put off: {_why(error)}")

    def _due(self, now: int) -> bool:
        ks, disk = self._data.ks, self._data.disk
        if self._wanted or self._rewrite_wanted or ks.pool.drafted > DRAFTS:
            return True
        if disk.wants_checkpoint(len(ks.changes.streams)):
            return True
        changed, since = ks.changes.count, now // 1000 - self.saves.last
        return bool(changed) and any(
            changed >= changes and since >= seconds for seconds, changes in self._config.save_points
        )

    def _begin_sync(self) -> None:
        try:
            self._sync = in_thread(self._data.disk.sync)
        except (RuntimeError, MemoryError) as error:  # no thread for it: tried again in a second
            self._sync_failed(error)
        else:
            self._sync.add_done_callback(self._sync_ended)

    def _sync_ended(self, task: asyncio.Future[None]) -> None:
        error = task.exception()
        if error is not None:
            self._sync_failed(error)

    def _sync_failed(self, error: BaseException) -> None:
        self._logger.warning(f"Syncing the log failed: {error}")


def _why(error: BaseException) -> str:
    """The error without its number, if its text is ours."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)
