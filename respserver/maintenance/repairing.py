"""Repairs damaged nodes of the store (``persistence.noderepair``), one at a time, at the rate of the scrub.

A copy of the entries comes from this server's memory, from the leader, or from a replica. If nobody has a good copy,
reads of these entries return an error, and everything else continues. The next attempt follows after RETRY_MS, or
after a checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from persistence.noderepair import NodeRange, RepairError, replace, wanted
from persistence.scrub import Damage, Scrub
from replication.nodes import LONGEST_KEY
from resp.errors import CorruptError
from respserver.roles.roles import Roles
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread

RETRY_MS = 15_000  # between two attempts to repair a node


class Repairing(ServerPart):
    """Repairs the store of the open data directory."""

    def __init__(self, parts: RuntimeParts, roles: Roles, spend: Callable[[int], None]) -> None:
        """Initialize. ``spend``: called with the bytes that were read or received."""
        super().__init__(parts)
        self._roles = roles
        self._spend = spend
        self.fetched = 0  # nodes that were replaced
        self._task: asyncio.Task[None] | None = None
        self._failed: dict[tuple[int, bytes], tuple[str, int]] = {}  # why the last attempt failed; when the next one is
        self._offset = 0  # log offset of the store at the last attempt

    def on_time(self) -> None:
        """Begin a repair if there is damage. Called ``hz`` times a second, unless the rate forbids it."""
        disk, mono = self._data.disk, self._clock.mono()
        if not disk.scrub.damaged and not self._failed:
            return
        if self._task is not None or self._gates.loading:
            return
        damaged = {(damage.db, damage.key): damage for damage in disk.scrub.damage}
        self._failed = {key: failed for key, failed in self._failed.items() if key in damaged}
        if disk.store.offset != self._offset:
            self._offset = disk.store.offset
            self._failed = {key: (why, mono) for key, (why, _) in self._failed.items()}
        for key, damage in damaged.items():
            if self._failed.get(key, ("", mono))[1] <= mono and disk.check_files() is None:
                self._task = self._loop.create_task(self._repair(disk.scrub, damage))
                return

    async def finish(self) -> None:
        """Wait until the current repair has ended. It may be waiting for another member for some seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

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
            before, _ = self._failed.get(key, ("", 0))
            self._failed[key] = str(error), self._clock.mono() + RETRY_MS
            if str(error) != before and scrub is self._data.disk.scrub:
                self._logger.warning(f"Scrub: can't repair {damage}: {error}")
        finally:
            self._task = None

    async def _replace(self, scrub: Scrub, damage: Damage) -> None:
        disk = self._data.disk
        asked = await in_thread(lambda: wanted(disk.store, damage.key))
        if asked is None:
            scrub.check_again()
            return
        blob, source = await self._copy(asked)
        self._spend(len(blob))
        replaced = await in_thread(lambda: replace(disk.store, damage.key, blob))
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
        for name, send in self._roles.node_sources():
            blob = await self._roles.nodes.ask(send, asked)
            if blob:
                return blob, name
        raise RepairError("no other member has a good copy of these entries now")

    @property
    def irreparable(self) -> int:
        """The number of damaged entries for which the last attempt failed."""
        return len(self._failed)
