"""The members of a simulated server group, and their coordinator.

Rule: the thread that renews a lease is a process of its own: it goes on while the event loop of its member is stuck.
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
from respserver.group.services import GroupServices
from respserver.server import RespServer
from storage.model.ids import format_id
from storage.streams.stream import Stream
from tests.simulation.groupchecks import STATE, GroupChecks
from tests.simulation.members import PORT, Member, SimClock, SimLogger
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process

T = TypeVar("T")
TIMEOUT: Final = 0.4  # seconds of a call to the coordinator
KEY: Final = "log"  # the stream of the clients


class SimStore(SimulatedStore):
    """Notifies the members in their order: that of a set differs from run to run."""

    def __init__(self, members: list[GroupMember], checks: GroupChecks) -> None:
        super().__init__()
        self._members, self._checks = members, checks

    def swap_for(self, who: str, key: str, value: bytes | None, version: int, lease: Lease | None) -> int | None:
        """Change a key for a member."""
        found = self.keys.get(key)
        before = found.value if found is not None else None
        changed = self.swap(key, value, version, lease)
        if changed is not None:
            self._checks.changed(who, key, before, value)
        return changed

    def revoke(self, name: str) -> None:
        if name in self.leases:
            self._checks.expired(name)
        super().revoke(name)

    def _notify(self, key: str) -> None:
        for member in self._members:
            if member.coordinator is not None:
                member.coordinator.changed(key)


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
            lambda: self._store.swap_for(self._member.name, key, value, version, lease), key in self._member.counted
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

        def tell() -> None:
            process.call(changed)

        self._thread.start(keep_renewing(self._renewals, coordinator, lease, lambda: self._beats, loop.time, tell))

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

    def stop(self, *, wait: bool = True) -> None:
        self._thread.die()


class GroupMember(Member):
    """A member with its own connection to the coordinator."""

    cut_off = False  # from the coordinator
    slow_requests = False  # requests to it arrive late
    lost_replies = 0  # so many of its next replies are lost
    lost_swap = 0  # the reply to so many changes of the state from now is lost, and it is cut off then
    counted: tuple[str, ...] = (STATE,)  # the keys of these changes
    stopped = False  # SIGSTOP
    stuck = False  # its event loop is stuck
    stuck_since = 0.0  # by the virtual clock
    held = 0  # the ID of the newest entry of the writers when the process ended
    store: SimStore
    coordinator: SimCoordinator | None = None
    threads: list[Process]  # of its process

    def pause(self, paused: bool) -> None:
        self.stopped = paused and self.running
        super().pause(paused)
        self._apply()

    def stick(self, stuck: bool) -> None:
        """Let the event loop stop, or go on. The threads run."""
        stuck = stuck and self.running
        if stuck != self.stuck:
            self.stuck, self.stuck_since = stuck, self.loop.virtual
            self.loop.note(f"{self.name} {'is stuck' if stuck else 'is not stuck any more'}")
        self._apply()

    def _apply(self) -> None:
        if self.process is not None and not self.process.dead:
            self.process.paused = self.stopped or self.stuck
            for thread in self.threads:
                thread.paused = self.stopped

    @property
    def loaded(self) -> bool:
        """Whether its process runs and has its data in memory."""
        return self.running and hasattr(self.server, "checkpoints") and not self._server.gates.loading

    @property
    def _server(self) -> RespServer:
        assert self.server is not None
        return self.server

    @property
    def log_end(self) -> int:
        """The log offset at which its log ends."""
        return self._server.data.disk.offset

    def has_entry(self, number: int, entry: int) -> bool:
        """Return whether the stream of the writers has this number under this ID; only if it is loaded."""
        stream = self._server.data.ks.keys.get(KEY.encode()) if self.loaded else None
        found = stream.find(entry) if isinstance(stream, Stream) else None
        return found is not None and bytes(found).endswith(b"\r\n%d\r\n" % number)

    def entry_of(self, number: int) -> bytes | None:
        """Return the ID of a number in the stream of the writers; None if it is not loaded, or does not have it."""
        stream = self._server.data.ks.keys.get(KEY.encode()) if self.loaded else None
        if not isinstance(stream, Stream):
            return None
        ids = (stream.id_at(at) for at in range(stream.next_ord - 1, stream.first_ord - 1, -1))
        entry = next((each for each in ids if self.has_entry(number, each)), None)
        return format_id(entry) if entry is not None else None

    def holds(self, number: int, entry: int) -> bool:
        """Return whether it has an entry; of one that has ended or closed its store, when it did."""
        if not self.loaded:
            return self.held >= entry
        try:
            return self.has_entry(number, entry)
        except OSError:  # the store is closed, and the process about to end
            stream = self._server.data.ks.keys.get(KEY.encode())
            return isinstance(stream, Stream) and stream.newest_id() >= entry

    def may_release(self) -> bool:
        """Return whether it may release replies now, as the leader."""
        if not self.loaded or self._server.membership is None or not self._server.membership.in_sync.leading:
            return False
        lease = self._server.membership.presence.lease
        return lease is not None and self.trusts(lease.id)

    def trusts(self, lease: str) -> bool:
        """Return whether it has this lease, and considers it valid now."""
        if not self.loaded or self._server.membership is None:
            return False
        presence = self._server.membership.presence
        keeper = presence._keeper
        if keeper is None or presence.lease is None or presence.lease.id != lease:
            return False
        return self.loop.virtual * self.rate < keeper.valid_until

    def end(self, power: bool = False) -> None:
        if self.running:
            stream = self._server.data.ks.keys.get(KEY.encode()) if self.loaded else None
            self.held = stream.newest_id() if isinstance(stream, Stream) else self.held
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
            server = RespServer(Config.load(argv), SimLogger(process), SimClock(process, lambda: self.offset), services)
            self.server = server
            await server.start()
            await server.run_until_stopped()
        except Exception as error:  # noqa: BLE001 - it is reported
            self.loop.trouble.append(f"{self.name} does not run: {error!r}")
        self.ended = True
