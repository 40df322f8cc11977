"""Repairs damaged nodes of the store (``persistence.noderepair``), one at a time, at the rate of the scrub.

A copy of the entries comes from this server's memory, from the leader, or from a replica. If nobody has a good copy,
reads of these entries return an error, and everything else continues. The next attempt follows after RETRY_MS, after
a checkpoint, or when the members that can be asked are others.

Decision: an attempt that fails starts a checkpoint. Other members may have deleted some of the entries, or all of them,
and the store then no longer needs these entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from persistence.noderepair import NodeRange, RepairError, replace, wanted
from persistence.scrub import Damage, Scrub
from replication.nodes import LONGEST_KEY
from resp.errors import CorruptError
from respserver.roles.nodes import PATIENCE
from respserver.roles.roles import Roles
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread

RETRY_MS = 15_000  # between two attempts to repair a node
CHECKPOINT_MS = 60_000  # between two checkpoints because of failed attempts

T = TypeVar("T")


class Repairing(ServerPart):
    """Repairs the store of the open data directory."""

    def __init__(
        self, parts: RuntimeParts, roles: Roles, spend: Callable[[int], None], checkpoint: Callable[[], None]
    ) -> None:  # fmt: skip
        """Initialize. ``spend``: called with the bytes that were read or received. ``checkpoint``: starts one soon."""
        super().__init__(parts)
        self._roles = roles
        self._spend = spend
        self._checkpoint = checkpoint
        self._no_checkpoint_before = 0  # ms (monotonic)
        self.fetched = 0  # nodes that were replaced
        self._task: asyncio.Task[None] | None = None
        self._failed: dict[tuple[int, bytes], tuple[str, int]] = {}  # why the last attempt failed; when the next one is
        self._offset = 0  # log offset of the store at the last attempt
        self._sources: list[str] = []  # the members that could be asked then
        self._asking = ""  # the member whose answer is awaited
        self._work: asyncio.Future[Any] | None = None  # the last work in a thread

    def on_time(self) -> None:
        """Begin a repair if there is damage. Called ``hz`` times a second, unless the rate forbids it."""
        disk, mono = self._data.disk, self._clock.mono()
        if not disk.scrub.damaged and not self._failed:
            return
        sources = [name for name, _ in self._roles.node_sources()]
        if self._asking and self._asking not in sources:
            self._roles.nodes.abandon()
        if self._task is not None or self._gates.loading:
            return
        damaged = {(damage.db, damage.key): damage for damage in disk.scrub.damage}
        self._failed = {key: failed for key, failed in self._failed.items() if key in damaged}
        if (disk.store.offset, sources) != (self._offset, self._sources):
            self._offset, self._sources = disk.store.offset, sources
            self._failed = {key: (why, mono) for key, (why, _) in self._failed.items()}
        for key, damage in damaged.items():
            if self._failed.get(key, ("", mono))[1] <= mono and disk.check_files() is None:
                self._task = self._loop.create_task(self._repair(disk.scrub, damage))
                return

    async def finish(self) -> None:
        """End the current repair, and wait for its thread: the store may be closed and replaced then."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._work is not None and not self._work.done():
            await asyncio.wait([self._work])

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. If the repair is cancelled, the thread continues, and finish() waits for it."""
        ending = in_thread(work)
        ending.add_done_callback(lambda _: ending.cancelled() or ending.exception())  # nobody may be waiting for it
        self._work = ending
        return await asyncio.shield(ending)

    async def _repair(self, scrub: Scrub, damage: Damage) -> None:
        """Repair a damaged node, or note why this is not possible."""
        key = damage.db, damage.key
        self._spend(1)  # a failed attempt has a cost, too
        try:
            if damage.node is None:
                raise RepairError("only nodes can be repaired; a full copy replaces everything")
            await self._replace(scrub, damage)
            self._failed.pop(key, None)
        except (RepairError, CorruptError, OSError, RuntimeError, MemoryError) as error:
            if scrub is not self._data.disk.scrub:  # the data was replaced meanwhile
                return
            before, _ = self._failed.get(key, ("", 0))
            self._failed[key] = str(error), self._clock.mono() + RETRY_MS
            self._deleted_meanwhile()
            if str(error) != before:
                self._logger.warning(f"Scrub: can't repair {damage}: {error}")
        finally:
            self._task = None

    def _deleted_meanwhile(self) -> None:
        """Let the store no longer contain entries that were deleted."""
        disk, mono = self._data.disk, self._clock.mono()
        if mono >= self._no_checkpoint_before and disk.store.offset < disk.offset:
            self._no_checkpoint_before = mono + CHECKPOINT_MS
            self._checkpoint()

    async def _replace(self, scrub: Scrub, damage: Damage) -> None:
        disk = self._data.disk
        asked = await self._in_thread(lambda: wanted(disk.store, damage.key))
        if asked is None:
            scrub.check_again()
            return
        blob, source = await self._copy(asked)
        self._spend(len(blob))
        replaced = await self._in_thread(lambda: replace(disk.store, damage.key, blob))
        if disk is not self._data.disk or self._gates.loading:  # the data was replaced meanwhile
            return
        disk.renew_view()
        scrub.check_again()
        self._data.ks.pool.damaged.get(asked.sid, {}).pop(asked.first_ord, None)
        if replaced:
            self.fetched += 1
            self._logger.notice(f"Scrub: repaired {damage} (key {asked.key!r}) with a copy from {source}")

    async def _copy(self, asked: NodeRange) -> tuple[bytes, str]:
        """Return the entries as a blob, and where they are from. Raises RepairError if nobody has a good copy."""
        blob = await self._roles.nodes.own(asked, in_memory=True)
        if blob:
            return blob, "memory"
        if len(asked.key) > LONGEST_KEY:
            raise RepairError("the key is too long for a request to another member")
        silent: list[str] = []
        for name, send in self._roles.node_sources():
            self._asking = name
            try:
                blob = await self._roles.nodes.ask(send, asked)
            except TimeoutError:
                silent.append(name)
                continue
            finally:
                self._asking = ""
            if blob:
                return blob, name
        if silent:
            raise RepairError(
                f"no answer within {PATIENCE:g} seconds from {', '.join(silent)}, and no other member has a good copy"
                " of these entries now"
            )
        raise RepairError("no other member has a good copy of these entries now")

    @property
    def irreparable(self) -> int:
        """The number of damaged entries for which the last attempt failed."""
        return len(self._failed)
