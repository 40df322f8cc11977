"""A member of a server group: it joins, follows the leader, campaigns if there is no leader, leads, and hands over.

    joining      waits for the coordinator or for its name, or its data directory is being checked
    following    a replica of the leader
    waiting      there is no leader, and this member is not in the in-sync set
    campaigning  there is no leader, and this member is in the in-sync set
    leading      it has the leader's key and the epoch of the state

Rule 1: one task makes all decisions sequentially, and each decision uses the current state at the coordinator. Watches,
acknowledgements, lost connections and renewals only wake this task.
Rule 2: a member creates the leader's key before it changes the epoch, so no other member changes the epoch meanwhile.
Rule 3: the candidate with the longest log wins. Among equals, the first name wins. Each candidate closes its connection
to the old leader before it publishes the length of its log. Candidates wait only briefly for a live member that has
published no length, because all members of the in-sync set have all acknowledged data.
Rule 4: a leader that hands over stops releasing replies before it makes the other member the leader.
Rule 5: a start never continues an epoch. A member that led before its restart is elected again, with a new history.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from coordinator.interface import CoordinatorError, Watch
from replication.feed import ReplicaFeed
from replication.members import GroupAnnouncement
from resp.errors import CommandError
from respserver import __version__
from respserver.clients.pauses import Pauses
from respserver.config.config import Config
from respserver.group import document, identity
from respserver.group.document import GroupStateError, MemberRecord, ServerGroupState
from respserver.group.insync import InSync
from respserver.group.presence import MemberPresence, NameTakenError
from respserver.group.services import GroupServices
from respserver.group.states import GroupStore, LeaderKey, Presence
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.parts import RuntimeParts, ServerPart

BEATS: Final = 20  # per lease: twice as many as the keeper needs
PATIENCE: Final = 0.05  # of the lease: how long a live candidate that has published nothing is waited for
LONGEST_PATIENCE: Final = 0.2  # seconds
SHORT_WAIT: Final = 0.005  # seconds between two readings while a campaign or a takeover is decided
LASTS: Final = 1.0  # seconds after which a problem is logged
AGAIN_SECONDS: Final = 30.0  # between two log lines about the same problem
STALL: Final = 0.5  # of the lease: a stall of the event loop that is reported


class GroupRoles(Protocol):
    """The methods of ``Roles`` that a member uses."""

    def become_replica(self, host: str, port: int, force: bool = False) -> None: ...
    def unfollow(self) -> None:
        """Become a replica without a leader."""

    def lead_epoch(self, replid: str) -> None:
        """Begin a new history with this ID, and accept writes. Raises CommandError; nothing has changed then."""


class GroupMembership(ServerPart):
    """This server as a member of its group. Used on the event loop only. Implements ``GroupPart``."""

    def __init__(
        self, parts: RuntimeParts, services: GroupServices, roles: GroupRoles, replicas: Replicas, link: LeaderLink,
        pauses: Pauses,
    ) -> None:  # fmt: skip
        """Initialize. Raises ConfigError, CorruptError, OSError."""
        super().__init__(parts)
        self._services = services
        self._roles = roles
        self._replicas = replicas
        self._link = link
        self._pauses = pauses
        config = self._config
        self.identity = identity.load(config)
        self.name: Final = self.identity.member
        self.address = identity.address(config)
        self.store = GroupStore(services.coordinator, config.group)
        own = Presence(self.identity.id, self.address, "")
        self.presence = MemberPresence(services, self.store, self.name, own, config.group_lease, self._lease_changed)
        self.in_sync = InSync(parts, replicas, link, self.presence.valid, self.wake)
        self.phase = "joining"
        self.problem = ""  # why this member can't continue, or a fault; "": none
        self.leader: LeaderKey | None = None  # as last read
        self.longest_stall = 0.0  # seconds between two turns of the event loop
        self.skews: dict[str, int] = {}  # by member: ms by which its clock is ahead of this one's, when it connected
        self._epoch = 0  # the last epoch that this start of the member has seen
        self._key = 0  # the version of the leader's key, if this member has created it
        self._led = 0  # the epoch in which this member leads; 0: it does not
        self._appointed = 0  # an epoch that began while this member ran, and whose leader it should be
        self.on_result: Callable[[], None] = lambda: None  # called when a removal has ended
        self._followed = 0  # the epoch whose leader it has followed last
        self._awaited_since = 0.0  # loop time since which a leader that was named is waited for; 0: none
        self._target = ""  # the member to which it hands over; "": it does not
        self._give_up_at = 0.0  # loop time when it stops to hand over
        replicas.group = self
        self._wakened, self._handed_over = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[Watch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._beaten = 0.0
        self._warn_at = 0.0  # loop time when the problem is logged

    # -- start and stop ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to join, once the server listens."""
        self._logger.notice(
            f"This server is the member {self.name} of the group {self._config.group}, at {self.address}"
        )
        self._beaten = self._loop.time()
        self._beat()
        self._tasks.append(self._loop.create_task(self._run()))
        for key in (self.store.state_key, self.store.leader_key):
            watch = self._services.coordinator.watch(key)
            self._watches.append(watch)
            self._tasks.append(self._loop.create_task(self._follow_watch(watch)))

    async def finish(self, hand_over: bool) -> None:
        """Leave: hand over if this member leads, and end its lease. Called at shutdown."""
        if hand_over and self._led and self.in_sync.names:
            with suppress(CommandError):
                self.fail_over("", 2 * self._config.group_lease)
            if self._target:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._handed_over.wait(), self._config.group_lease / 1000)
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
        now = self._loop.time()
        stalled = now - self._beaten
        self._beaten = now
        lease = self._config.group_lease / 1000
        if stalled > max(self.longest_stall, STALL * lease):
            self._logger.warning(
                f"The event loop stalled for {stalled:.1f} s, and the lease lasts {lease:g} s: a leader that stalls for"
                " longer than its lease is replaced. Set group-lease to more than twice the longest stall"
            )
        self.longest_stall = max(self.longest_stall, stalled)
        self.presence.beat()
        self.in_sync.on_time()
        if self.in_sync.must_change(self.name) or self._target:
            self.wake()
        self._timer = self._loop.call_later(lease / BEATS, self._beat)

    def wake(self) -> None:
        """Let the task decide again."""
        self._wakened.set()

    def _lease_changed(self) -> None:
        if self.presence.valid():
            self._ticks.confirmed_changed()
        self.wake()

    async def _follow_watch(self, watch: Watch) -> None:
        async for _ in watch:
            self.wake()

    async def _run(self) -> None:
        retry = self._config.group_lease / 5000
        while not self._stopping:
            self._wakened.clear()
            try:
                wait = await self._step() or 10 * retry  # the watches miss nothing: this is a precaution
                self.problem = ""
            except CoordinatorError as error:
                self._note(f"the coordinator {self._config.coordinator} is unavailable; this member waits: {error}")
                wait = retry / 4
            except (GroupStateError, NameTakenError, CommandError, OSError) as error:
                self._note(error.text if isinstance(error, CommandError) else str(error))
                wait = retry
            except Exception as error:  # noqa: BLE001 - even after a bug, a member must try again
                self._logger.trace("Bug in the membership", error)
                wait = retry
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakened.wait(), wait)

    def _note(self, problem: str) -> None:
        """Show a problem, and log it if it lasts."""
        now = self._loop.time()
        if problem != self.problem:
            self.problem, self._warn_at = problem, now + LASTS
        elif now >= self._warn_at:
            self._warn_at = now + AGAIN_SECONDS
            self._logger.warning(f"Group {self._config.group}: {problem}")

    # -- one decision --------------------------------------------------------------------------------------------
    async def _step(self) -> float:
        """Decide once. Returns the seconds until the next decision if nothing wakes this task; 0: the usual time."""
        if not self.presence.held:
            self._key = 0  # it was bound to the lease
            self.in_sync.silence()  # a new lease is valid, but it is not that of the leader's key
            try:
                await self.presence.acquire()
            except NameTakenError:
                # The other process may have joined with another directory, so this one has to join again.
                self.phase, self._appointed = "joining", 0
                self._resign()
                raise
        state = await self._current()
        if state.epoch > self._epoch:
            self._epoch = state.epoch
            if state.leader == self.name:
                self._appointed = state.epoch
        key = self.leader = await self.store.leader()
        mine = key is not None and key.name == self.name
        if key is None or key.version != self._key:
            self.in_sync.silence()
        if state.epoch != self._led:
            self._resign()
        if key is None:
            return await self._without_leader(state)
        self._awaited_since = 0.0
        if mine and (key.version != self._key or (key.epoch, key.name) != (state.epoch, state.leader)):
            # It was created by a request of unknown outcome, or a handover took effect late.
            self._key = 0
            await self.store.give_up_lead(key.version)
            self.wake()
        elif mine:
            # It may have been elected by a change whose outcome it does not know, and not lead yet.
            await (self._leading(state) if self._led == state.epoch else self._lead(state, state.epoch))
        elif (key.epoch, key.name) == (state.epoch, state.leader):
            self._follow(state)
        # Otherwise, an election or a handover is in progress: the watches wake this task.
        return 0.0

    async def _current(self) -> ServerGroupState:
        """Return the state, which has this directory. Raises GroupStateError, CoordinatorError, OSError."""
        if self.phase == "joining":
            return await self._joined()
        state = await self.store.read()
        if state is None:
            raise GroupStateError(f"the coordinator has lost the state of the group: {document.REMEDY}")
        self._check_epoch(state)
        record = state.members.get(self.name)
        if record is not None and record.id != self.identity.id:
            # Another process used the name while this one had no lease. Its data was counted, not that of this one.
            self._appointed = 0
            self._resign()
            return await self._joined()
        return state

    def _check_epoch(self, state: ServerGroupState) -> None:
        """Refuse a state that is older than one that this member has seen: its in-sync set is out of date."""
        if state.epoch < self._epoch:
            self.in_sync.silence()
            raise GroupStateError(
                f"the coordinator has the state of epoch {state.epoch}, but this member has seen epoch {self._epoch}:"
                " it was restored from a copy that is out of date, and would lose acknowledged writes:"
                f" {document.REMEDY}"
            )

    async def _joined(self) -> ServerGroupState:
        """Join the group, or create it. Raises GroupStateError, CoordinatorError, OSError."""
        store, own = self.store, self.identity
        record = MemberRecord(self.address, own.id, __version__)
        seen = document.epoch_of(self._data.disk.history.id)
        if own.group_id:  # otherwise, it was an epoch of another group
            self._epoch = max(self._epoch, seen)
        state = await store.read()
        if state is None:
            if own.group_id:
                raise GroupStateError(
                    f"the coordinator {self._config.coordinator} has no state of the group {own.group}, to which this"
                    " data directory belongs: check the URL. If the state is lost, stop all members, delete the file"
                    " 'group' in the directory of each member, and start the member with the most data first"
                )
            own.save(Path(self._config.dir))  # the ID of the directory: a crash must not change it
            state = document.create(secrets.token_hex(20), self.name, record, self._clock.now(), seen + 1)
            if not await store.create(state):
                self.wake()
                raise CoordinatorError("another member has created the group at the same time")
            self._logger.notice(f"Created the group {own.group}, ID {state.group_id}")
        else:
            if own.group_id and own.group_id != state.group_id:
                raise GroupStateError(
                    f"the data directory {self._config.dir} belongs to another group with the name {own.group}"
                    f" (ID {own.group_id}, the coordinator has {state.group_id}): choose another dir or another"
                    " coordinator"
                )
            self._check_epoch(state)
            own.save(Path(self._config.dir))
            weak = self._data.disk.rebooted and self._config.replica_acks == 0 and self._config.appendfsync != "always"

            def decide(state: ServerGroupState) -> ServerGroupState:
                now = self._clock.now()
                state = document.join(state, self.name, record, now)
                if weak:
                    why = "its machine restarted, and some writes may not have been synced"
                    state = document.withdraw(state, self.name, now, why)
                return state

            state = await store.change(decide) or state
            self._epoch = state.epoch
        if not own.group_id:
            own.group_id = state.group_id
            own.save(Path(self._config.dir))
        self._link.group = GroupAnnouncement(own.group_id, self.name, own.id)
        self._replicas.group_id = own.group_id
        self._link.cluster.shard = own.group_id
        self.phase = "waiting"
        return state

    # -- following -----------------------------------------------------------------------------------------------
    def _follow(self, state: ServerGroupState) -> None:
        self.phase = "following"
        self._link.cluster.epoch = state.epoch
        leader = state.members.get(state.leader)
        if self.name not in state.members:
            raise GroupStateError("this member was removed from the group: stop it, or restart it to join again")
        if leader is None:
            raise GroupStateError(f"the leader {state.leader} is not among the members")
        host, _, port = leader.address.rpartition(":")
        self._stop_leading()
        again = self._followed != state.epoch and not self._link.up  # it may wait for seconds before its next attempt
        self._followed = state.epoch
        if again or not self._link.leads_to(host, int(port)):
            self._logger.notice(f"{state.leader} leads the group {self._config.group} in epoch {state.epoch}")
            self._roles.become_replica(host, int(port))

    def _resign(self) -> None:
        """Be no leader any more, if this member leads. The clients with withheld replies are disconnected."""
        if self._led:
            self._stop_leading()
            self._roles.unfollow()

    def _stop_leading(self) -> None:
        self.in_sync.silence()
        self._led = 0
        if self._target:
            self._target = ""
            self._pauses.hold_writes(False)

    # -- without a leader ----------------------------------------------------------------------------------------
    @property
    def _patience(self) -> float:
        """How long candidates wait for a live member, in seconds."""
        return min(PATIENCE * self._config.group_lease / 1000, LONGEST_PATIENCE)

    async def _without_leader(self, state: ServerGroupState) -> float:
        if state.epoch == self._appointed != self._led and state.leader == self.name and self._unfit() is None:
            await self._take_over(state)
        elif self.name in state.in_sync:
            if state.leader != self.name and await self.store.presence(state.leader) is not None:
                # Another member has handed over to it, and it is about to lead.
                self._awaited_since = self._awaited_since or self._loop.time()
                if self._loop.time() - self._awaited_since < 2 * self._patience:
                    return SHORT_WAIT
            await self._campaign(state)
        else:
            self.phase = "waiting"
            raise GroupStateError(
                "there is no leader, and this member can't lead, because it is not in the in-sync set: it waits for one"
                f" of {', '.join(state.in_sync)}"
            )
        return 0.0

    def _unfit(self) -> str | None:
        """Return why this member can't lead now; None if it can."""
        if self._gates.loading or self._link.syncing:
            return "its data is being replaced"
        if not self._ticks.writable:
            return "its disk accepts no writes"
        if self._data.disk.scrub.damaged:
            return "its store is damaged; the log has details (Scrub)"
        return None

    async def _campaign(self, state: ServerGroupState) -> None:
        """Compete for the lead; the epoch is unchanged while the leader's key is free (Rules 2 and 3)."""
        self.phase = "campaigning"
        unfit = self._unfit()
        if unfit is not None:
            raise GroupStateError(f"there is no leader, and this member can't lead: {unfit}")
        if self._led != state.epoch:  # a leader whose lease has expired has no link
            self._roles.unfollow()
        if not self._ticks.settle():
            raise GroupStateError("there is no leader, and this member can't lead: its disk accepts no writes")
        end = self._data.disk.offset
        await self.presence.candidate(state.epoch, end)
        until = self._loop.time() + self._patience
        others = [name for name in state.in_sync if name != self.name]
        while await self._must_wait(others, state.epoch, end) and self._loop.time() < until:
            await asyncio.sleep(SHORT_WAIT)
            if await self.store.leader() is not None:
                return
        lease = self.presence.lease
        if lease is None:
            return
        epoch = state.epoch + 1
        key = await self.store.take_lead(self.name, epoch, lease)
        if key is None:
            return
        self._key = key
        why = "the lease of the previous leader has expired" if state.leader != self.name else "it leads again"

        def decide(now_at: ServerGroupState) -> ServerGroupState | None:
            if now_at.epoch == epoch and now_at.leader == self.name:
                return now_at  # a request of unknown outcome was successful
            if now_at.epoch != state.epoch or self.name not in now_at.in_sync:
                return None
            return document.elect(now_at, self.name, self._clock.now(), why)

        await self._lead(await self._certain(lambda: self.store.change(decide)), epoch)

    async def _must_wait(self, others: list[str], epoch: int, end: int) -> bool:
        """Return whether another candidate is better, or a live member has not yet published the length of its log."""
        for name in others:
            found = await self.store.presence(name)
            if found is None:
                continue
            other = found[0]
            if other.vacant != epoch or (-other.end, name) < (-end, self.name):
                return True
        return False

    async def _take_over(self, state: ServerGroupState) -> None:
        """Become the leader that the state names, because the group is new or the previous leader handed over."""
        lease = self.presence.lease
        if lease is None:
            return
        if state.epoch > 1:
            self._roles.unfollow()
        key = await self.store.take_lead(self.name, state.epoch, lease)
        if key is None:
            return
        self._key = key
        await self._lead(await self._certain(lambda: self.store.change(lambda found: found)), state.epoch)

    async def _certain(self, change: Callable[[], Awaitable[ServerGroupState | None]]) -> ServerGroupState | None:
        """Repeat a change until its outcome is known, as long as the lease is valid. Raises CoordinatorError."""
        while True:
            try:
                return await change()
            except CoordinatorError:
                if not self.presence.valid():
                    raise
                await asyncio.sleep(SHORT_WAIT)

    async def _lead(self, state: ServerGroupState | None, epoch: int) -> None:
        """Lead if the state names this member and the epoch. Delete the key otherwise."""
        if state is None or state.epoch != epoch or state.leader != self.name:
            await self._give_up()
            return
        self.in_sync.begin(state, self.name, self.store.version)
        self._led = self._epoch = epoch
        try:
            self._roles.lead_epoch(secrets.token_hex(12) + f"{epoch:016x}")
        except CommandError:
            self._stop_leading()
            await self._give_up()
            raise
        self.phase = "leading"
        self._link.cluster.epoch = epoch
        self._logger.notice(
            f"This member leads the group {self._config.group} in epoch {epoch}; in sync: {', '.join(state.in_sync)}"
        )
        self.in_sync.recount()

    async def _give_up(self) -> None:
        key, self._key = self._key, 0
        await self.store.give_up_lead(key)

    # -- leading -------------------------------------------------------------------------------------------------
    async def _leading(self, state: ServerGroupState) -> None:
        """Adopt the state, and change the in-sync set if it should change."""
        self.phase = "leading"
        if not self.in_sync.leading:  # it was silent because of a handover that did not take place
            self.in_sync.begin(state, self.name, self.store.version)
        self.in_sync.adopt(state, self.name, self.store.version)
        if self.in_sync.must_change(self.name):
            await self.store.change(self._change_set, self._sending)
            if self.store.state is not None:
                self.in_sync.adopt(self.store.state, self.name, self.store.version)
        if self._target:
            await self._hand_over()

    def _change_set(self, state: ServerGroupState) -> ServerGroupState | None:
        if state.epoch != self._led or state.leader != self.name or not self.in_sync.leading:
            return None
        self.in_sync.adopt(state, self.name, self.store.version)  # a member may have left the set since the last one
        names, why = self.in_sync.wanted(self.name)
        changed = document.set_in_sync(state, names, self._clock.now(), why)
        if changed == state and self.in_sync.unsettled:
            return document.confirm_in_sync(state, self._clock.now())
        return changed

    def _sending(self, state: ServerGroupState, replaces: int) -> None:
        self.in_sync.sending(state.in_sync, self.name, replaces)

    # -- planned failover ----------------------------------------------------------------------------------------
    def fail_over(self, target: str, timeout_ms: int) -> None:
        """Hand over to a member of the in-sync set; "": the most up-to-date one. Raises CommandError."""
        if not self._led or not self.in_sync.leading:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if self._target:
            raise CommandError("ERR FAILOVER already in progress.")
        connected = {name: feed for name in self.in_sync.names if (feed := self.in_sync.feed(name)) is not None}
        if not connected:
            raise CommandError("ERR FAILOVER requires another connected member in the in-sync set.")
        if target and target not in connected:
            raise CommandError(f"ERR FAILOVER target must be a connected member of the in-sync set: {target} is not.")
        best = max(sorted(connected), key=lambda name: connected[name].on_disk)
        self._target = target or best
        self._give_up_at = self._loop.time() + (timeout_ms or self._config.in_sync_timeout) / 1000
        self._logger.notice(f"Failover: writes wait until {self._target} has the whole log")
        self._handed_over.clear()
        self._pauses.hold_writes(True)
        self.wake()

    def target_named(self, host: str, port: int) -> str:
        """Return the name of the member at this address. Raises CommandError."""
        for feed in self._replicas.feeds:
            if (feed.host, feed.port) == (host, port) and feed.group_member:
                return feed.group_member
        raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")

    def abort(self, why: str) -> None:
        """Abort the planned failover, and continue to lead. Raises CommandError if none is in progress."""
        if not self._target:
            raise CommandError("ERR No failover in progress.")
        if not self.in_sync.leading:
            raise CommandError(f"ERR FAILOVER can't be aborted any more: {self._target} may lead already.")
        self._logger.warning(f"Failover to {self._target} aborted: {why}")
        self._target = ""
        self._pauses.hold_writes(False)

    @property
    def handing_over(self) -> bool:
        """Whether a planned failover is in progress."""
        return bool(self._target)

    async def _hand_over(self) -> None:
        """Make the target the leader once it has the whole log (Rule 4)."""
        data, target = self._data, self._target
        feed = self.in_sync.feed(target)
        if self._loop.time() > self._give_up_at:
            self.abort("TIMEOUT has expired")
            return
        if feed is None or target not in self.in_sync.names:
            self.abort("it is disconnected or no longer in the in-sync set")
            return
        settled = not (data.ks.log or self._ticks.stalled or self._ticks.withheld_since() is not None)
        if not settled or feed.on_disk != data.disk.offset:
            feed.alive(wanted=True)
            return
        self.in_sync.silence()

        def decide(state: ServerGroupState) -> ServerGroupState | None:
            if state.epoch == self._led + 1 and state.leader == target:
                return state  # a request of unknown outcome was successful
            if state.epoch != self._led or target not in state.in_sync:
                return None
            return document.hand_over(state, target, self._clock.now(), f"{self.name} handed over")

        try:
            state = await self._certain(lambda: self.store.change(decide))
        except CoordinatorError:
            return  # no replies are released until the next reading shows the outcome
        if state is None:
            if self.store.state is not None:
                self.in_sync.begin(self.store.state, self.name, self.store.version)
            self.abort("the state of the group has changed")
            return
        key, self._key = self._key, 0
        self._follow(state)
        await self.store.give_up_lead(key)
        self._handed_over.set()

    # -- for INFO and TMEMBER ------------------------------------------------------------------------------------
    @property
    def config(self) -> Config:
        """The directives."""
        return self._config

    @property
    def end(self) -> int:
        """The log offset at which this member's log ends."""
        return self._data.disk.offset

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
            "group": self._config.group, "group_member": self.name, "group_phase": self.phase,
            "group_epoch": state.epoch if state is not None else 0,
            "group_leader": state.leader if state is not None and self.leader is not None else "",
            "group_in_sync": len(state.in_sync) if state is not None else 0,
            "group_members": len(state.members) if state is not None else 0,
            "group_lease_left_ms": max(0, int(self.presence.seconds_left * 1000)),
        }  # fmt: skip

    # -- events --------------------------------------------------------------------------------------------------
    def heard(self, feed: ReplicaFeed) -> None:
        """Process an acknowledgement of a replica."""
        self.in_sync.heard(feed)
        if self._target:
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
            if await self.store.presence(name) is not None:
                return f"ERR {name} is running: stop it first"
            await self.store.change(lambda state: document.remove(state, name, self._clock.now()))
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
