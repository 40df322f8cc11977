"""When checkpoints happen and how one runs: frozen on the loop, written in a thread, its memory freed on the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from resp import errors
from resp.errors import CommandError, CorruptError
from respserver.figures import Saves
from storage.capture import Capture

if TYPE_CHECKING:
    from respserver.server import Server

RETRY_MS = 5000  # after a failed checkpoint
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
        server = self.server
        capture, offset = self._freeze()
        began = server.clock.mono()
        disk = server.disk
        task = server.loop.run_in_executor(None, disk.checkpoint, capture, offset)
        self._task = task

        def done(task: asyncio.Future[None]) -> None:
            if self._task is not task:
                return
            self._task = None
            self._ended(capture, task.exception(), began)

        task.add_done_callback(done)
        return True

    def run_now(self) -> None:
        """Write one before returning. Raises OSError, CorruptError; CommandError if one runs in the background."""
        if self._task is not None:
            raise CommandError(errors.SAVE_RUNNING)
        server = self.server
        capture, offset = self._freeze()
        began = server.clock.mono()
        try:
            server.disk.checkpoint(capture, offset)
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

    def _freeze(self) -> tuple[Capture, int]:
        """Everything up to here is in the log, so the capture belongs to its offset."""
        server = self.server
        if (server.ks.log or server.stalled) and not server.commit():
            raise OSError("the last write could not be made durable")
        server.roles.replicas.moved_on()  # what the journal must keep when it is cut behind this
        self.saves.running = True
        self.saves.started = server.clock.now() // 1000
        return server.ks.capture(), server.disk.offset

    def _ended(self, capture: Capture, error: BaseException | None, began: int) -> None:
        server, saves = self.server, self.saves
        saves.running = False
        if error is None:
            try:
                server.disk.renew_view()
            except (OSError, CorruptError) as failed:
                error = failed  # what was captured stays in memory, and is written once more
        saves.last_ok = error is None
        saves.last_seconds = (server.clock.mono() - began) // 1000
        if error is None:
            server.ks.captured(capture)
            saves.last = server.clock.now() // 1000
            saves.count += 1
            server.log.verbose(f"Checkpoint done in {server.clock.mono() - began} ms")
        else:
            server.ks.capture_failed(capture)
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
        full = server.disk.wants_checkpoint() or server.ks.nodes.drafted > DRAFTS
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
