"""When checkpoints happen and how one runs: taken on the loop in small parts, written in a thread, its memory freed on
the loop in small parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from resp import errors
from resp.errors import CommandError
from respserver.observe.stats import Saves
from respserver.upkeep.malloc import give_back
from storage.changes import EVERYTHING

if TYPE_CHECKING:
    from respserver.server import Server
    from storage.capture import Capture

RETRY_MS = 5000  # after a failed checkpoint
PART = 64  # keys that are taken, or let go, at once: some 100 microseconds; then whoever waits has a turn
DRAFTS = 32 << 20  # bytes of memory that drafts may take before a checkpoint stores them


class Checkpoints:
    """At most one runs at a time. ``saves`` is what INFO and LASTSAVE tell."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.saves = Saves(last=server.clock.now() // 1000)
        self._task: asyncio.Future[None] | None = None
        self.wanted = False  # one has been asked for that could not begin at once
        self._not_before = 0  # mono ms; after a failure
        self._synced = 0  # mono ms of the last everysec sync
        self._sync: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    def begin(self) -> bool:
        """Start one in the background; False if one is running. Raises OSError."""
        if self._task is not None:
            return False
        self.wanted = False
        offset = self._freeze()
        self._task = self.server.loop.create_task(self._run(self.server.ks.begin_capture(), offset))
        return True

    async def _run(self, capture: Capture, offset: int) -> None:
        """A checkpoint in the background. ``capture`` has just begun."""
        server = self.server
        began, changes = server.clock.mono(), server.ks.changes
        problem: BaseException | None = None
        try:
            while not changes.more(PART):  # noqa: ASYNC110 - it waits for nothing: others have a turn
                await asyncio.sleep(0)
            await server.loop.run_in_executor(None, server.disk.checkpoint, capture, offset)
            server.disk.renew_view()  # fails: what was captured stays in memory, and is written once more
            while not changes.stored(capture, PART):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await server.loop.run_in_executor(None, give_back)
        except Exception as error:  # noqa: BLE001 - whatever it is: the next one must hold it all again
            problem = error
        self._task = None
        self._ended(capture, problem, began)

    def run_now(self) -> None:
        """Write one before returning. Raises OSError, CorruptError; CommandError if one runs in the background."""
        if self._task is not None:
            raise CommandError(errors.SAVE_RUNNING)
        server = self.server
        offset = self._freeze()
        began, changes = server.clock.mono(), server.ks.changes
        capture = server.ks.begin_capture()
        try:
            changes.more(EVERYTHING)
            server.disk.checkpoint(capture, offset)
            server.disk.renew_view()
            changes.stored(capture, EVERYTHING)
            give_back()
        except Exception as error:
            self._ended(capture, error, began)
            raise
        self._ended(capture, None, began)

    async def finish(self) -> None:
        """Wait for what runs in the background."""
        while (task := self._task or self._sync) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # let the callbacks run
            if task is self._sync:
                self._sync = None

    def _freeze(self) -> int:
        """The log's offset once everything up to here is in it: that of a capture that begins now."""
        server = self.server
        if (server.ks.log or server.stalled) and not server.commit():
            raise OSError("the last write could not be made durable")
        server.roles.replicas.moved_on()  # what the journal must keep when it is cut behind this
        self.saves.running = True
        self.saves.started = server.clock.now() // 1000
        return server.disk.offset

    def _ended(self, capture: Capture, error: BaseException | None, began: int) -> None:
        server, saves = self.server, self.saves
        saves.running = False
        saves.last_ok = error is None
        saves.last_seconds = (server.clock.mono() - began) // 1000
        if error is None:
            saves.last = server.clock.now() // 1000
            saves.count += 1
            server.log.verbose(f"Checkpoint done in {server.clock.mono() - began} ms")
        else:
            server.ks.changes.failed(capture)
            self._not_before = server.clock.mono() + RETRY_MS
            server.log.warning(f"Checkpoint failed, the journal keeps everything; next try in 5 seconds: {error}")

    def on_time(self, now: int) -> None:
        """Begin one if the journal has grown enough or a save point says so; sync each second under everysec."""
        server = self.server
        mono = server.clock.mono()
        if server.disk.pending_sync and mono - self._synced >= 1000 and (self._sync is None or self._sync.done()):
            self._synced = mono
            self._sync = server.loop.run_in_executor(None, server.disk.sync)
            self._sync.add_done_callback(self._sync_ended)
        if self._task is not None or mono < self._not_before:
            return
        changed = server.ks.dirty_count
        full = server.disk.wants_checkpoint() or server.ks.pool.drafted > DRAFTS
        due = self.wanted or full or any(
            changed and changed >= changes and now // 1000 - self.saves.last >= seconds
            for seconds, changes in server.config.save_points
        )
        if due:
            try:
                self.begin()
            except OSError as error:
                self._not_before = mono + RETRY_MS
                server.log.warning(f"Checkpoint put off: {error}")

    def _sync_ended(self, task: asyncio.Future[None]) -> None:
        error = task.exception()
        if error is not None:
            self.server.log.warning(f"Syncing the log failed: {error}")
