"""The election of a leader: a member competes for the lead, or takes the lead that another member handed over.

Rule 1: a member creates the leader's key before it changes the epoch, so no other member changes the epoch meanwhile.
Rule 2: the candidate with the longest log wins. Among equals, the first name wins. Each candidate closes its connection
to the old leader before it publishes the length of its log. Candidates wait only briefly for a live member that has
published no length, because all members of the in-sync set have all acknowledged data.
Rule 3: a member whose store is damaged does not lead if another member of the in-sync set can, or may return. It leads
only if the stores of all members of the set are damaged, and all of them are candidates.
"""

from __future__ import annotations

import asyncio
from typing import Final

from respserver.group import document
from respserver.group.document import GroupStateError, ServerGroupState
from respserver.group.parts import MemberPart, MemberParts
from respserver.group.standing import SHORT_WAIT, MemberStanding
from respserver.runtime.parts import RuntimeParts

PATIENCE: Final = 0.05  # of the lease: how long a live candidate that has published nothing is waited for
LONGEST_PATIENCE: Final = 0.2  # seconds


class Election(MemberPart):
    """The decisions of a member while the group has no leader."""

    def __init__(self, parts: RuntimeParts, member: MemberParts, standing: MemberStanding) -> None:
        super().__init__(parts, member)
        self._standing = standing
        self._awaited_since = 0.0  # loop time since which a leader that was named is waited for; 0: none

    def ended(self) -> None:
        """Note that the group has a leader."""
        self._awaited_since = 0.0

    @property
    def _patience(self) -> float:
        """How long candidates wait for a live member, in seconds."""
        return min(PATIENCE * self._config.group_lease / 1000, LONGEST_PATIENCE)

    async def without_leader(self, state: ServerGroupState) -> float:
        """Decide once. Returns as ``GroupDecisions.step``. Raises CoordinatorError, GroupStateError, CommandError."""
        appointed = state.leader == self.name and state.epoch == self._standing.appointed != self._standing.led
        if appointed and self._unfit() is None and not self._data.disk.scrub.damaged:
            await self._take_over(state)
        elif self.name in state.in_sync:
            if state.leader != self.name and await self.store.presence(state.leader) is not None:
                # Another member has handed over to it, and it is about to lead.
                self._awaited_since = self._awaited_since or self._loop.time()
                if self._loop.time() - self._awaited_since < 2 * self._patience:
                    return SHORT_WAIT
            await self._campaign(state)
        else:
            self._standing.phase = "waiting"
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
        return None

    async def _campaign(self, state: ServerGroupState) -> None:
        """Compete for the lead; the epoch is unchanged while the leader's key is free (Rules 1 and 2)."""
        self._standing.phase = "campaigning"
        unfit = self._unfit()
        if unfit is not None:
            raise GroupStateError(f"there is no leader, and this member can't lead: {unfit}")
        if self._standing.led != state.epoch:  # a leader whose lease has expired has no link
            self._roles.unfollow()
        if not self._ticks.settle():
            raise GroupStateError("there is no leader, and this member can't lead: its disk accepts no writes")
        own = self._data.disk.offset, self._data.disk.scrub.damaged > 0
        await self.presence.candidate(state.epoch, *own)
        until = self._loop.time() + self._patience
        others = [name for name in state.in_sync if name != self.name]
        if own[1] and not await self._all_damaged(others, state.epoch):
            raise GroupStateError(
                "there is no leader, and this member can't lead: its store is damaged (see the log), so it waits for"
                f" {', '.join(others)}"
            )
        while await self._must_wait(others, state.epoch, *own) and self._loop.time() < until:
            await asyncio.sleep(SHORT_WAIT)
            if await self.store.leader() is not None:
                return
        lease = self.presence.lease_to_lead
        if lease is None:
            return
        epoch = state.epoch + 1
        key = await self.store.take_lead(self.name, epoch, lease)
        if key is None:
            return
        self._standing.key = key
        why = "the lease of the previous leader has expired" if state.leader != self.name else "it leads again"

        def decide(now_at: ServerGroupState) -> ServerGroupState | None:
            if now_at.epoch == epoch and now_at.leader == self.name:
                return now_at  # a request of unknown outcome was successful
            if now_at.epoch != state.epoch or self.name not in now_at.in_sync:
                return None
            return document.elect(now_at, self.name, self._clock.now(), why)

        await self._standing.lead(await self._standing.certain(lambda: self.store.change(decide)), epoch)

    async def _all_damaged(self, others: list[str], epoch: int) -> bool:
        """Return whether all these members are candidates with damaged stores (Rule 3)."""
        for name in others:
            found = await self.store.presence(name)
            if found is None or found[0].vacant != epoch or not found[0].damaged:
                return False
        return True

    async def _must_wait(self, others: list[str], epoch: int, end: int, damaged: bool) -> bool:
        """Return whether another candidate is better, or a live member has not yet published the length of its log."""
        for name in others:
            found = await self.store.presence(name)
            if found is None:
                continue
            other = found[0]
            if other.vacant == epoch and other.damaged > damaged:
                continue
            if other.vacant != epoch or (-other.end, name) < (-end, self.name):
                return True
        return False

    async def _take_over(self, state: ServerGroupState) -> None:
        """Become the leader that the state names, because the group is new or the previous leader handed over."""
        await self.presence.may_lead()
        lease = self.presence.lease_to_lead
        if lease is None:
            return
        if state.epoch > 1:
            self._roles.unfollow()
        key = await self.store.take_lead(self.name, state.epoch, lease)
        if key is None:
            return
        self._standing.key = key
        confirmed = await self._standing.certain(lambda: self.store.change(lambda found: found))
        await self._standing.lead(confirmed, state.epoch)
