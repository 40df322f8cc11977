"""The members of a simulated server group, and their coordinator, which also checks how the group's state changes.

Rule 1: the thread that renews a lease is a process of its own: it goes on while the event loop of its member is stuck.
Rule 2: only the leader adds members to the in-sync set, or appoints its successor. Anyone else can only make itself the
leader: of a new epoch, as a member of the set, and without the old leader in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from coordinator.interface import CoordinatorError, Lease, LeaseGoneError, Versioned
from coordinator.keeper import keep_renewing
from coordinator.renewals import Renewals
from coordinator.simulated import SimulatedStore
from respserver.config.config import Config
from respserver.group.document import ServerGroupState, decode
from respserver.group.services import GroupServices
from respserver.server import RespServer
from storage.streams.stream import Stream
from tests.simulation.members import PORT, Member, SimClock, SimLogger
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process

T = TypeVar("T")
TIMEOUT: Final = 0.4  # seconds of a call to the coordinator
KEY: Final = "log"  # the stream of the clients
TOP: Final = "tidelog/groups/tide"  # of the keys


class SimStore(SimulatedStore):
    """Notifies the members in their order: that of a set differs from run to run. Checks changes of the state."""

    def __init__(self, loop: NetworkLoop) -> None:
        super().__init__()
        self._loop = loop
        self.members: list[GroupMember] = []

    def swap_for(self, who: str, key: str, value: bytes | None, version: int, lease: Lease | None) -> int | None:
        """Change a key for a member."""
        before = self.keys.get(key)
        changed = self.swap(key, value, version, lease)
        if changed is not None and key == f"{TOP}/state" and value is not None:
            state = decode(value)
            self._loop.note(f"state: {who} sets epoch {state.epoch}, leader {state.leader}, {state.in_sync}")
            if before is not None and (wrong := forbidden(who, decode(before.value), state)):
                self._loop.trouble.append(f"{who} changes the state of the group: {wrong}")
        return changed

    def _notify(self, key: str) -> None:
        for member in self.members:
            if member.coordinator is not None:
                member.coordinator.changed(key)


def forbidden(who: str, old: ServerGroupState, new: ServerGroupState) -> str:
    """Return why a member must not replace a state by another one; "" if it may (Rule 2)."""
    added = set(new.in_sync) - set(old.in_sync)
    if new.epoch == old.epoch:
        if new.leader != old.leader:
            return f"{new.leader} leads in epoch {new.epoch}, in which {old.leader} led"
        return f"it adds {added}, and does not lead" if added and who != old.leader else ""
    if new.epoch != old.epoch + 1:
        return f"epoch {new.epoch} follows epoch {old.epoch}"
    if new.leader not in old.in_sync or added:
        return f"{new.leader} leads with {new.in_sync}, and the set was {old.in_sync}"
    if who != old.leader and (who != new.leader or old.leader in new.in_sync):
        return f"{new.leader} leads with {new.in_sync}, and {old.leader} did not consent"
    return ""


# -- the coordinator -------------------------------------------------------------------------------------------------
class SimCoordinator:
    """The coordinator as one process reaches it. The store lives in the world: it outlasts the process."""

    def __init__(self, loop: NetworkLoop, store: SimStore, process: Process, member: GroupMember) -> None:
        self._loop, self._store, self._process, self._member = loop, store, process, member
        self._watches: list[_SimWatch] = []

    def _delay(self) -> float:
        return self._loop.random.choice((0.0005, 0.002, 0.02)) * self._loop.random.random() + 1e-6

    async def _call(self, act: Callable[[], T], swapped: bool = False) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        member, process = self._member, self._process

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        def reply(result: T) -> None:
            if not (member.cut_off or future.done()):
                future.set_result(result)

        def request() -> None:  # in the world
            if member.cut_off:
                return
            try:
                result = act()
            except LeaseGoneError as error:
                process.call(fail, error, after=self._delay())
                return
            if member.lost_swap and swapped and result is not None:
                member.lost_swap -= 1
                if not member.lost_swap:
                    member.cut_off = True
                    return
            if member.lost_replies:
                member.lost_replies -= 1
                return
            process.call(reply, result, after=self._delay())

        self._loop.world.call(request, after=self._delay() + (0.3 if member.slow_requests else 0.0))
        try:
            async with asyncio.timeout(TIMEOUT):
                return await future
        except TimeoutError:
            raise CoordinatorError("the coordinator did not answer") from None

    async def get(self, key: str) -> Versioned | None:
        return await self._call(lambda: self._store.get(key))

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        return await self._call(
            lambda: self._store.swap_for(self._member.name, key, value, version, lease), key == f"{TOP}/state"
        )

    async def grant(self, ms: int) -> Lease:
        return await self._call(lambda: self._store.grant(ms))

    async def keep(self, lease: Lease) -> bool:
        return await self._call(lambda: self._store.keep(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._call(lambda: self._store.revoke(lease.id))

    def watch(self, key: str) -> _SimWatch:
        watch = _SimWatch(key)
        watch.changed.set()
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()

    def changed(self, key: str) -> None:
        """Notify the watches of a key."""
        if not (self._process.dead or self._member.cut_off):
            for watch in self._watches:
                if watch.key == key:
                    self._process.call(watch.changed.set, after=self._delay())

    def healed(self) -> None:
        for watch in self._watches:
            self.changed(watch.key)


class _SimWatch:
    def __init__(self, key: str) -> None:
        self.key = key
        self.changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> _SimWatch:
        return self

    async def __anext__(self) -> None:
        await self.changed.wait()
        if self._closed:
            raise StopAsyncIteration
        self.changed.clear()

    def close(self) -> None:
        self._closed = True
        self.changed.set()


class SimKeeper:
    """A lease that a process renews instead of a thread. ``changed``: called in the member's process."""

    def __init__(
        self, member: GroupMember, process: Process, lease: Lease, granted: float, changed: Callable[[], None]
    ) -> None:
        loop = member.loop
        self._renewals = Renewals(lease.ms, granted)
        self._clock = loop.time
        self._beats = 0
        self._thread = loop.process(f"{member.name}'s lease", member.host, process.rate)
        self._thread.paused = member.stopped
        member.threads.append(self._thread)
        coordinator = SimCoordinator(loop, member.store, self._thread, member)
        self._thread.start(
            keep_renewing(
                self._renewals, coordinator, lease, lambda: self._beats, loop.time, lambda: process.call(changed)
            )
        )

    @property
    def valid_until(self) -> float:
        return self._renewals.valid_until

    @property
    def lost(self) -> bool:
        return self._renewals.lost

    def valid(self) -> bool:
        return self._renewals.valid(self._clock())

    def beat(self) -> None:
        self._beats += 1

    def stop(self) -> None:
        self._thread.die()


class GroupMember(Member):
    """A member with its own connection to the coordinator."""

    cut_off = False  # from the coordinator
    slow_requests = False  # requests to it arrive late
    lost_replies = 0  # so many of its next replies are lost
    lost_swap = 0  # the reply to so many changes of the state from now is lost, and it is cut off then
    stopped = False  # SIGSTOP
    stuck = False  # its event loop is stuck
    stuck_since = 0.0  # by the virtual clock
    newest = 0  # the ID of the newest entry of the log when the process ended
    store: SimStore
    coordinator: SimCoordinator | None = None
    threads: list[Process]  # of its process

    def pause(self, paused: bool) -> None:
        self.stopped = paused
        super().pause(paused)
        self._apply()

    def stick(self, stuck: bool) -> None:
        """Let the event loop stop, or go on. The threads run."""
        if stuck != self.stuck:
            self.stuck, self.stuck_since = stuck, self.loop.virtual
            self.loop.note(f"{self.name} {'is stuck' if stuck else 'is not stuck any more'}")
        self._apply()

    def _apply(self) -> None:
        if self.process is not None and not self.process.dead:
            self.process.paused = self.stopped or self.stuck
            for thread in self.threads:
                thread.paused = self.stopped

    def newest_entry(self, key: str) -> int:
        """Return the ID of the newest entry of a stream that this member has; of a dead one, when it ended."""
        if self.running and self.server is not None and hasattr(self.server, "data"):
            stream = self.server.data.ks.keys.get(key.encode())
            return stream.newest_id() if isinstance(stream, Stream) else 0
        return self.newest

    def end(self, power: bool = False) -> None:
        if self.running:
            self.newest = self.newest_entry(KEY)
            self.stopped = self.stuck = False
            for thread in self.threads:
                thread.die()
        super().end(power)

    async def _main(self, process: Process) -> None:
        argv = ["--port", str(PORT), "--bind", self.host, "--dir", str(self.disk.path)]
        for name, value in self.settings.items():
            argv += [f"--{name}", *value.split(" ")]
        made = self.coordinator = SimCoordinator(self.loop, self.store, process, self)
        self.threads = []
        services = GroupServices(
            made, lambda lease, granted, changed: SimKeeper(self, process, lease, granted, changed), self.loop.time
        )
        try:
            server = RespServer(Config.load(argv), SimLogger(process), SimClock(process, self.offset), services)
            self.server = server
            await server.start()
            await server.run_until_stopped()
        except Exception as error:  # noqa: BLE001 - it is reported
            self.loop.trouble.append(f"{self.name} does not run: {error!r}")
        self.ended = True
