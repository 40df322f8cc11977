"""Follows the map at the coordinator, and writes the record of this group while this member leads.

Rule 1: a member saves each version of the map before it uses it, and uses no older one.
Rule 2: a leader serves no slot until the map has its epoch. Until then, the leader of an earlier epoch can give slots
away (``coordinator.slotmap``, Rule 3). Meanwhile, calls wait.
Rule 3: the first leader of a cluster creates the map, and its group owns all slots. A member that has seen a map never
creates one: the coordinator has lost it, and a new one could give slots to two groups.
Rule 4: nothing is requested while nothing changes, except a reading every READ_SECONDS as a precaution.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from commands.slots import NO_SLOTS
from coordinator import slotmap
from coordinator.interface import CoordinatorError, Watch
from coordinator.slotmap import SlotMap, SlotMapError
from coordinator.stored import StoredDocument
from respserver.clients.pauses import Pauses
from respserver.group.membership import GroupMembership
from respserver.roles.cluster import Cluster
from respserver.roles.replicas import Replicas
from respserver.runtime.ownership import table, without
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from respserver.slotmaps import mapfile
from respserver.slotmaps.leaving import SlotDeparture
from respserver.slotmaps.record import GroupRecord
from respserver.slotmaps.unserved import UnservedSearch

CHECK_SECONDS: Final = 1.0  # between two comparisons of the record with the map, without I/O
READ_SECONDS: Final = 60.0
RETRY: Final = 0.05  # of the lease: between two attempts while the coordinator is unavailable
AGAIN_SECONDS: Final = 30.0  # between two log lines about the same problem


class MapKeeper(ServerPart):
    """The map at one member. Used on the event loop only."""

    def __init__(
        self, parts: RuntimeParts, membership: GroupMembership, cluster: Cluster, replicas: Replicas,
        departure: SlotDeparture, pauses: Pauses,
    ) -> None:  # fmt: skip
        """Read the saved map. Raises CorruptError, OSError."""
        super().__init__(parts)
        self.group: Final = self._config.group
        self._directory = Path(self._config.dir)
        self._standing = membership.standing
        self._departure = departure
        self._pauses = pauses
        self._unserved = UnservedSearch(parts, membership.standing)
        self._record = GroupRecord(parts.loop, membership, cluster, replicas)
        self.store = StoredDocument(
            membership.store.coordinator, f"tidelog/clusters/{self._config.cluster_name}/map", slotmap.decode,
            self._lost, "the map of the cluster",
        )  # fmt: skip
        # the imports of this group are settled before the leader uses a map (``importing``)
        self.settle: Callable[[SlotMap], Awaitable[None]] = _nothing_to_settle
        self.on_used: Callable[[], None] | None = None  # called when this member uses another map, or begins to lead
        self.problem = ""  # why this member can't use the map, or can't write its record; "": none
        self._gained = 0  # the last version of the map that gave slots to this group and that this member uses
        self._noted_at = 0.0  # loop time when the problem was logged
        self._lock = asyncio.Lock()  # of all readings and changes of the document
        self._wakened = asyncio.Event()
        self._must_read = True
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: Watch | None = None
        self._slots.be_mapped(self.group)
        saved = mapfile.load(self._directory)
        if saved is not None:
            self._slots.use(saved)
        membership.standing.on_led = self._led_changed

    @property
    def map(self) -> SlotMap | None:
        """The map that this member uses."""
        return self._slots.map

    # -- start and stop ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to follow the map, once the server listens."""
        self._watch = self.store.coordinator.watch(self.store.key)
        self._tasks = [self._loop.create_task(self._follow(self._watch)), self._loop.create_task(self._run())]

    async def finish(self) -> None:
        """Stop. Called before the coordinator is closed."""
        if self._watch is not None:
            self._watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._unserved.finish()

    async def _follow(self, watch: Watch) -> None:
        async for _ in watch:
            self.read_again()

    def _led_changed(self) -> None:
        """Serve no slot: this member has begun to lead in another epoch, or does not lead any more."""
        self._slots.lead(False, preparing=bool(self._standing.led))
        self.read_again()
        self._pauses.retry()

    # -- the task ------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        read_at = 0.0
        while True:
            wait = CHECK_SECONDS
            now = self._loop.time()
            try:
                if self._must_read or now - read_at >= READ_SECONDS or self._outdated():
                    self._must_read, read_at = False, now
                    async with self._lock:
                        await self._step()
                    self.problem = ""
            except CoordinatorError as error:
                self._note(f"the map can't be read or changed: {error}", wait=True)
                self._must_read, wait = True, RETRY * self._config.group_lease / 1000
            except (SlotMapError, OSError) as error:
                self._note(str(error), wait=False)
                self._must_read = True
            except Exception as error:  # noqa: BLE001 - even after a bug, a member must try again
                self._logger.trace("Bug while following the map of the cluster", error)
                self._must_read = True
            try:
                self._unserved.check()
            except Exception as error:  # noqa: BLE001 - as above
                self._logger.trace("Bug in the search for keys that no client can use", error)
            if not (self._must_read and self._wakened.is_set()):
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wakened.wait()
            self._wakened.clear()

    def _note(self, problem: str, wait: bool) -> None:
        """Show and log a problem. ``wait``: calls for the slots continue to wait."""
        now = self._loop.time()
        if not wait and self._slots.preparing:
            self._slots.lead(False)
            self._pauses.retry()
        if problem != self.problem or now - self._noted_at >= AGAIN_SECONDS:
            self.problem, self._noted_at = problem, now
            self._logger.warning(f"Cluster {self._config.cluster_name}: {problem}")

    def _outdated(self) -> bool:
        """Return whether this member leads, and the map has another record of its group."""
        if not (self._standing.led and self._slots.leads and self.map is not None):
            return False
        known = self.map.groups.get(self.group)
        return self._record.current(self._standing.led, known, self._gained) != known

    async def _step(self) -> None:
        """Read the map; write the record if this member leads; use the map. Raises CoordinatorError, SlotMapError,
        OSError."""
        found = await self.store.read()
        self._check(found)
        led = self._standing.led
        if led:
            if found is None:
                await self._create(led)
            else:
                if not self._slots.leads:
                    await self.settle(found)  # before the record says that this member uses the map
                    self._gained = max(self._gained, found.version)  # an earlier leader may not have written it
                await self.store.change(lambda slots: self._written(slots, led))
        if self.store.value is not None:
            await self._use(self.store.value)
        if led and led == self._standing.led and not self._slots.leads:
            self._slots.lead(True)
            if self.on_used is not None:
                self.on_used()
            self._pauses.retry()
            self._logger.notice(
                f"Cluster {self._config.cluster_name}: group {self.group} serves"
                f" {self.map.count(self.group) if self.map is not None else 0} slots, map version"
                f" {self.map.version if self.map is not None else 0}"
            )

    def _check(self, found: SlotMap | None) -> None:
        """Raise SlotMapError if this member must not use what the coordinator has (Rules 1 and 3)."""
        seen = self.map
        if seen is None:
            return
        if found is None:
            raise self._lost()
        if found.cluster_id != seen.cluster_id:
            raise SlotMapError(
                f"the data directory belongs to another cluster (ID {seen.cluster_id}, the coordinator has"
                f" {found.cluster_id}): check cluster-name and coordinator, or delete the file '{mapfile.NAME}' in the"
                " data directory to join this one"
            )
        if found.version < seen.version:
            raise SlotMapError(
                f"the coordinator has version {found.version} of the map, and this member has seen version"
                f" {seen.version}: {slotmap.REMEDY}"
            )

    def _lost(self) -> SlotMapError:
        return SlotMapError(
            f"the coordinator has no map of the cluster {self._config.cluster_name}: check cluster-name and"
            f" coordinator, or {slotmap.REMEDY}"
        )

    async def _create(self, led: int) -> None:
        record = self._record.current(led, None, 0)
        created = slotmap.create(secrets.token_hex(20), self.group, record, self._clock.now())
        if not await self.store.create(created):
            raise CoordinatorError("another group has created the map at the same time")
        self._logger.notice(f"Created the cluster {self._config.cluster_name}, ID {created.cluster_id}")

    def _written(self, slots: SlotMap, led: int) -> SlotMap | None:
        """Return the map with the record of this group; None if this member does not lead any more."""
        if self._standing.led != led:
            return None
        record = self._record.current(led, slots.groups.get(self.group), self._gained)
        return slotmap.put_group(slots, self.group, record, self._clock.now())

    async def _use(self, found: SlotMap) -> None:
        """Save and use a version of the map. Raises SlotMapError, OSError."""
        self._check(found)
        before = self.map
        if before == found:
            return
        await in_thread(lambda: mapfile.save(self._directory, found))
        if self._standing.led:
            await self.settle(found)
        self._slots.use(found)
        if self.on_used is not None:
            self.on_used()
        if before is not None and before.slots != found.slots:
            had, has = table(before.ranges(self.group)), table(found.ranges(self.group))
            if without(has, had) != NO_SLOTS:  # the record, which notifies the previous owner, is out of date
                self._gained = found.version
                self._wakened.set()
            gone = without(had, has)
            if gone != NO_SLOTS:
                await self._departure.left(gone)

    def read_again(self) -> None:
        """Let the task read the map."""
        self._must_read = True
        self._wakened.set()

    async def current(self) -> SlotMap:
        """Return the map. If slots are moving, the map is read again: the move may have ended. Raises SlotMapError,
        CoordinatorError, OSError."""
        if self.map is not None and self.map.moves:
            await self.change(lambda _: None)
        if self.map is None:
            raise SlotMapError(f"this member does not know the map yet: {self.problem or 'try again'}")
        return self.map

    # -- changes by commands -------------------------------------------------------------------------------------
    async def change(self, decide: Callable[[SlotMap], SlotMap | None]) -> SlotMap | None:
        """Change the map, and use the new one. Returns as ``StoredDocument.change``.

        Raises CoordinatorError if the outcome is unknown, SlotMapError, OSError.
        """
        async with self._lock:
            self._check(await self.store.read())
            try:
                return await self.store.change(decide)
            finally:  # also after an error: an earlier change, whose outcome was unknown, may have taken slots away
                if self.store.value is not None:
                    await self._use(self.store.value)


async def _nothing_to_settle(_: SlotMap) -> None:
    """Stand for the imports of a group until they are built."""
