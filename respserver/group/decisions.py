"""The decisions of a member: each one uses the current state at the coordinator.

Rule 1: one task makes all decisions sequentially. Watches, acknowledgements, lost connections and renewals only wake
this task.
Rule 2: a start never continues an epoch. A member that led before its restart is elected again, with a new history.
"""

from __future__ import annotations

from respserver.group import document
from respserver.group.document import ServerGroupState
from respserver.group.election import Election
from respserver.group.handover import Handover
from respserver.group.joining import GroupEntry
from respserver.group.parts import MemberPart, MemberParts
from respserver.group.presence import NameTakenError
from respserver.group.standing import SHORT_WAIT, MemberStanding
from respserver.group.states import LeaderKey
from respserver.runtime.parts import RuntimeParts


class GroupDecisions(MemberPart):
    """The decisions of one member."""

    def __init__(
        self, parts: RuntimeParts, member: MemberParts, standing: MemberStanding, handover: Handover
    ) -> None:  # fmt: skip
        super().__init__(parts, member)
        self._standing = standing
        self._handover = handover
        self._entry = GroupEntry(parts, member, standing)
        self._election = Election(parts, member, standing)

    async def step(self) -> float:
        """Decide once. Returns the seconds until the next decision if nothing wakes this task; 0: the usual time."""
        if not self.presence.held:
            self._standing.key = 0  # it was bound to the lease
            self.in_sync.silence()  # a new lease is valid, but it is not that of the leader's key
            try:
                await self.presence.acquire()
            except NameTakenError:
                # The other process may have joined with another directory, so this one has to join again.
                self._standing.phase, self._standing.appointed = "joining", 0
                self._standing.resign()
                raise
        state = await self._entry.current()
        self.in_sync.learn(state)
        if state.epoch > self._standing.epoch:
            self._standing.epoch = state.epoch
            if state.leader == self.name:
                self._standing.appointed = state.epoch
        key = self._standing.leader = await self.store.leader()
        if key is None or key.version != self._standing.key:
            self.in_sync.silence()
        if state.epoch != self._standing.led:
            self._standing.resign()
        if key is None:
            return await self._election.without_leader(state)
        self._election.ended()
        return await self._with_leader(state, key)

    async def _with_leader(self, state: ServerGroupState, key: LeaderKey) -> float:
        """Decide once, while there is a leader's key. Returns as step()."""
        mine = key.name == self.name
        if mine and (key.version != self._standing.key or (key.epoch, key.name) != (state.epoch, state.leader)):
            # It was created by a request of unknown outcome, or a handover took effect late.
            self._standing.key = 0
            await self.store.give_up_lead(key.version)
            self._wake()
        elif mine:
            if self._standing.led == state.epoch:
                await self._leading(state)
            else:  # it was elected by a change whose outcome it does not know
                await self._standing.lead(state, state.epoch)
        elif (key.epoch, key.name) == (state.epoch, state.leader):
            self._standing.follow(state)
            wait = await self.presence.follow()
            # while the link is down, the leader may have failed: its key is read until it is known
            return wait if self._link.up else self._config.group_lease / 5000
        elif state.leader == self.name:  # the previous leader has handed over and is about to delete its key
            await self.presence.may_lead()
            return SHORT_WAIT
        # Otherwise, an election or a handover is in progress: the watches wake this task.
        return 0.0

    async def _leading(self, state: ServerGroupState) -> None:
        """Adopt the state, and change the in-sync set if it should change."""
        self._standing.phase = "leading"
        if not self.in_sync.leading:  # it was silent because of a handover that did not take place
            self.in_sync.begin(state, self.name, self.store.version)
        self.in_sync.adopt(state, self.name, self.store.version)
        if self.in_sync.must_change(self.name):
            await self.store.change(self._change_set, self._sending)
            if self.store.state is not None:
                self.in_sync.adopt(self.store.state, self.name, self.store.version)
        self._handover.begin_if_due()
        if self._standing.target:
            await self._handover.step()

    def _change_set(self, state: ServerGroupState) -> ServerGroupState | None:
        if state.epoch != self._standing.led or state.leader != self.name or not self.in_sync.leading:
            return None
        self.in_sync.adopt(state, self.name, self.store.version)  # a member may have left the set since the last one
        names, why = self.in_sync.wanted(self.name)
        changed = document.set_in_sync(state, names, self._clock.now(), why)
        if changed == state and self.in_sync.unsettled:
            return document.confirm_in_sync(state, self._clock.now())
        return changed

    def _sending(self, state: ServerGroupState, replaces: int) -> None:
        self.in_sync.sending(state.in_sync, self.name, replaces)
