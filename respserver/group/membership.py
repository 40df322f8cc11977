"""A member of a server group: its start and stop, its task, and the events that let it decide again.

    parts      what the following modules share
    standing   what the member is now: it follows, leads, resigns
    joining    the group's state, which the member joins
    election   the decisions while there is no leader
    handover   the planned failover
    decisions  one decision

The event loop's turns are counted, since the lease is renewed only while it advances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from coordinator.interface import CoordinatorError, Watch
from replication.feed import ReplicaFeed
from replication.members import GroupAnnouncement
from resp.errors import CommandError
from respserver.clients.pauses import Pauses
from respserver.config.config import Config
from respserver.group import document, identity
from respserver.group.decisions import GroupDecisions
from respserver.group.document import GroupStateError
from respserver.group.handover import Handover
from respserver.group.insync import InSync, own_least
from respserver.group.parts import GroupRoles, MemberParts
from respserver.group.presence import MemberPresence, NameTakenError
from respserver.group.services import GroupServices, without_password
from respserver.group.standing import MemberStanding
from respserver.group.states import GroupStore, Presence
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.parts import RuntimeParts, ServerPart

BEATS: Final = 20  # per lease: twice as many as the keeper needs
LASTS: Final = 1.0  # seconds after which a problem is logged
AGAIN_SECONDS: Final = 30.0  # between two log lines about the same problem
PRECAUTION: Final = 24  # leases between two decisions if nothing wakes the task: the watches miss nothing
STALL: Final = 0.5  # of the lease: a stall of the event loop that is reported


class GroupMembership(ServerPart):
    """This server as a member of its group. Used on the event loop only. Implements ``GroupPart``."""

    def __init__(
        self, parts: RuntimeParts, services: GroupServices, roles: GroupRoles, replicas: Replicas, link: LeaderLink,
        pauses: Pauses,
    ) -> None:  # fmt: skip
        """Initialize. Raises ConfigError, CorruptError, OSError."""
        super().__init__(parts)
        self._services = services
        config = self._config
        own = identity.load(config)
        self.name: Final = own.member
        self.address: Final = identity.address(config)
        self.store = GroupStore(services.coordinator, config.group)
        self.presence = MemberPresence(
            services, self.store, self.name, Presence(own.id, self.address, ""), config.group_lease, self._lease_changed
        )
        link.cluster.lease_valid = self.presence.valid
        self.in_sync = InSync(parts, replicas, link, self.presence.valid, self.wake)
        member = MemberParts(
            own, self.address, self.store, self.presence, self.in_sync, roles, replicas, link, pauses, self.wake
        )
        self.standing = MemberStanding(parts, member)
        self.handover = Handover(parts, member, self.standing)
        self._decisions = GroupDecisions(parts, member, self.standing, self.handover)
        self.problem = ""  # why this member can't continue, or a fault; "": none
        self.skews: dict[str, int] = {}  # by member: ms by which its clock is ahead of this one's, when it connected
        self.on_result: Callable[[], None] = lambda: None  # called when a removal has ended
        replicas.group = self
        self._wakened = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[Watch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._beaten = 0.0
        self._lapsed = False  # the lease was invalid at a beat since its last renewal
        self._coordinator: Final = without_password(config.coordinator)
        self._warn_at = 0.0  # loop time when the problem is logged
        self._read_at = float("-inf")  # loop time just before the last decision that read the coordinator

    # -- start and stop ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to join, once the server listens."""
        self._logger.notice(
            f"This server is the member {self.name} of the group {self._config.group}, at {self.address}"
        )
        self._beaten = self._loop.time()
        self._beat()
        self._tasks.append(self._loop.create_task(self._run()))
        for key in (self.store.key, self.store.leader_key):
            watch = self._services.coordinator.watch(key)
            self._watches.append(watch)
            self._tasks.append(self._loop.create_task(self._follow_watch(watch)))

    async def finish(self, hand_over: bool) -> None:
        """Leave: hand over if this member leads, and end its lease. Called at shutdown."""
        if hand_over and self.standing.led and self.in_sync.names:
            self.handover.leaving = True
            with suppress(CommandError):
                self.handover.fail_over("", 2 * self._config.group_lease)
            if self.standing.target:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.group_lease / 1000):
                        await self.handover.done.wait()
        self._stopping = True
        self.in_sync.silence()
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches:
            watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.presence.release()
        except CoordinatorError as error:
            self._logger.warning(f"The lease of this member can't be revoked and will expire: {error}")
        await self._services.coordinator.close()

    def _beat(self) -> None:
        try:
            self._check_on_time()
        finally:  # also after a bug: without beats, the lease expires
            self._timer = self._loop.call_later(self._config.group_lease / 1000 / BEATS, self._beat)

    def _check_on_time(self) -> None:
        now = self._loop.time()
        stalled = now - self._beaten
        self._beaten = now
        lease = self._config.group_lease / 1000
        if stalled > max(self.longest_stall, STALL * lease):
            self._logger.warning(
                f"The event loop stalled for {stalled:.1f} s, and the lease lasts {lease:g} s: a leader that stalls for"
                " longer than its lease is replaced. Set group-lease to more than twice the longest stall"
            )
        self._counters.stalls.add(now, stalled)
        self.presence.beat()
        if not self._lapsed and not self.presence.valid():
            self._lapsed = True
            self.wake()  # the coordinator may be unavailable
        self.in_sync.on_time()
        if self.in_sync.must_change(self.name) or self.standing.target or self.handover.due():
            self.wake()

    @property
    def longest_stall(self) -> float:
        """Seconds between two turns of the event loop: the maximum of the last ten minutes."""
        return self._counters.stalls.longest(self._loop.time())

    def wake(self) -> None:
        """Let the task decide again."""
        self._wakened.set()

    def _lease_changed(self) -> None:
        """The lease was renewed or lost. A renewal in time changes nothing that is at the coordinator."""
        if self.presence.valid():
            self._ticks.confirmed_changed()
        if self._lapsed or not self.presence.held:
            self._lapsed = not self.presence.valid()
            self.wake()

    async def _follow_watch(self, watch: Watch) -> None:
        async for _ in watch:
            self.wake()

    async def _run(self) -> None:
        retry = self._config.group_lease / 5000
        while not self._stopping:
            self._wakened.clear()
            began = self._loop.time()
            try:
                wait = await self._decisions.step() or PRECAUTION * self._config.group_lease / 1000
                self.problem, self._read_at = "", began
            except CoordinatorError as error:
                self._note(f"the coordinator {self._coordinator} is unavailable; this member waits: {error}")
                wait = retry / 4
            except (GroupStateError, NameTakenError, CommandError, OSError) as error:
                self._note(error.text if isinstance(error, CommandError) else str(error))
                wait = retry
            except Exception as error:  # noqa: BLE001 - even after a bug, a member must try again
                self._logger.trace("Bug in the membership", error)
                wait = retry
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wakened.wait()

    def _note(self, problem: str) -> None:
        """Show a problem, and log it if it lasts."""
        now = self._loop.time()
        if problem != self.problem:
            self.problem, self._warn_at = problem, now + LASTS
        elif now >= self._warn_at:
            self._warn_at = now + AGAIN_SECONDS
            self._logger.warning(f"Group {self._config.group}: {problem}")

    # -- planned failover ----------------------------------------------------------------------------------------
    def fail_over(self, target: str, timeout_ms: int) -> None:
        self.handover.fail_over(target, timeout_ms)

    def target_named(self, host: str, port: int) -> str:
        return self.handover.target_named(host, port)

    def abort(self, why: str) -> None:
        self.handover.abort(why)

    @property
    def handing_over(self) -> bool:
        return bool(self.standing.target)

    @property
    def read_ms(self) -> int:
        """The time since the coordinator was read successfully, in ms; -1 if it was not read yet."""
        return -1 if self._read_at < 0 else int((self._loop.time() - self._read_at) * 1000)

    def read_again(self) -> None:
        """Read the coordinator, for an operator who wants to know whether it is available."""
        if not 0 <= self.read_ms < self._config.group_lease / 50:
            self.wake()

    # -- for INFO and TMEMBER ------------------------------------------------------------------------------------
    @property
    def config(self) -> Config:
        """The directives."""
        return self._config

    @property
    def least(self) -> int:
        """The members that must be in sync for writes, by the settings of all members; 0: replies do not wait."""
        state = self.store.state
        return max(own_least(self._config), state.least if state is not None else 0)

    @property
    def end(self) -> int:
        """The log offset at which this member's log ends."""
        return self._data.disk.offset

    @property
    def damaged(self) -> int:
        """The number of damaged entries and pages of this member's store."""
        return self._data.disk.scrub.damaged

    def withheld(self) -> dict[str, int]:
        """Return the number of clients with withheld replies, their bytes, and the age of the oldest in ms."""
        clients, size = self._ticks.withheld()
        since = self._ticks.withheld_since()
        age = 0 if since is None else max(0, self._clock.mono() - since)
        return {"withheld_clients": clients, "withheld_bytes": size, "withheld_ms": age}

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO replication."""
        state = self.store.state
        return {
            "group": self._config.group, "group_member": self.name, "group_phase": self.standing.phase,
            "group_epoch": state.epoch if state is not None else 0,
            "group_leader": state.leader if state is not None and self.standing.leader is not None else "",
            "group_in_sync": len(state.in_sync) if state is not None else 0,
            "group_members": len(state.members) if state is not None else 0, "group_min_in_sync": self.least,
            "group_lease_left_ms": max(0, int(self.presence.seconds_left * 1000)),
        }  # fmt: skip

    # -- for tiering ---------------------------------------------------------------------------------------------
    @property
    def epoch_led(self) -> int:
        """The epoch in which this member leads with a valid lease; 0 if it does not."""
        return self.standing.led if self.presence.valid() else 0

    @property
    def group_id(self) -> str:
        """The ID of the group; "" until this member has joined."""
        state = self.store.state
        return "" if state is None else state.group_id

    # -- events --------------------------------------------------------------------------------------------------
    def heard(self, feed: ReplicaFeed) -> None:
        """Process an acknowledgement of a replica."""
        self.in_sync.heard(feed)
        if self.standing.target:
            self.wake()

    def lost(self, feed: ReplicaFeed) -> None:
        """Process the loss of the connection to a replica."""
        self.in_sync.lost(feed)

    def may_copy(self, name: str) -> bool:
        """Return whether a member may get a full copy now."""
        return self.in_sync.may_copy(name)

    def connected(self, who: GroupAnnouncement) -> None:
        """Process the connection of a member."""
        self.skews[who.name] = who.now - self._clock.now()

    async def remove(self, name: str) -> str:
        """Remove a member that is not running from the group. Return the error line, or an empty string."""
        try:
            found = await self.store.presence(name)
            connected = not self.standing.led or self.in_sync.connected(name)  # only the leader knows who is not
            if found is not None and not connected and await self.presence.end_long(found[0]):
                found = await self.store.presence(name)
            if found is not None:
                return (
                    f"ERR {name} is running: stop it first. If it has already ended, its lease expires within"
                    f" {self.presence.longest(found[0]):g} s"
                )
            state = await self.store.read()
            vacant = state.epoch if state is not None and await self.store.leader() is None else 0
            await self.store.change(lambda state: document.remove(state, name, self._clock.now(), vacant))
        except GroupStateError as error:
            return f"ERR {error}"
        except CoordinatorError as error:
            return f"ERR the coordinator is unavailable, and the outcome is unknown: {error}"
        self.skews.pop(name, None)
        self.wake()
        return ""

    def removal(self, name: str) -> Callable[[], str | None]:
        """Start remove(). Return a function that returns None until the removal has ended, then its result."""
        task = self._loop.create_task(self.remove(name))
        task.add_done_callback(lambda _: self.on_result())
        return lambda: task.result() if task.done() else None
