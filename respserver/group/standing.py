"""The standing of a member in its group, and the steps that change it: it follows, leads, gives up, or resigns.

The phases:

    joining      waits for the coordinator or for its name, or its data directory is being checked
    following    a replica of the leader
    waiting      there is no leader, and this member is not in the in-sync set
    campaigning  there is no leader, and this member is in the in-sync set
    leading      it has the leader's key and the epoch of the state
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from coordinator.interface import CoordinatorError
from resp.errors import CommandError
from respserver.group.document import GroupStateError, ServerGroupState
from respserver.group.parts import MemberPart, MemberParts
from respserver.group.states import LeaderKey
from respserver.runtime.parts import RuntimeParts

SHORT_WAIT: Final = 0.005  # seconds between two readings while a campaign, a handover or a takeover is decided


class MemberStanding(MemberPart):
    """The current standing of a member. The other parts of the member read and change these attributes."""

    def __init__(self, parts: RuntimeParts, member: MemberParts) -> None:
        super().__init__(parts, member)
        self._pauses = member.pauses
        self.phase = "joining"
        self.leader: LeaderKey | None = None  # as last read
        self.epoch = 0  # the last one that this start of the member has seen
        self.key = 0  # the version of the leader's key, if this member has created it
        self.led = 0  # the epoch in which this member leads; 0: it does not
        self.appointed = 0  # an epoch that began while this member ran, and whose leader it should be
        self.target = ""  # the member to which it hands over; "": it does not
        self._followed = 0  # the epoch whose leader it has followed last
        self.on_led: Callable[[], None] = lambda: None  # called after each change of ``led``

    def follow(self, state: ServerGroupState, leads: bool = True) -> None:
        """Be a replica of the leader that the state names. Raises GroupStateError.

        ``leads``: it leads already. A member that has handed over to it connects again once it leads.
        """
        self.phase = "following"
        self._link.cluster.epoch = state.epoch
        leader = state.members.get(state.leader)
        if self.name not in state.members:
            raise GroupStateError("this member was removed from the group: stop it, or restart it to join again")
        if leader is None:
            raise GroupStateError(f"the leader {state.leader} is not among the members")
        host, _, port = leader.address.rpartition(":")
        self.stop_leading()
        new = self._followed != state.epoch  # the link may wait for seconds before its next attempt
        self._followed = state.epoch if leads else 0
        if not self._link.leads_to(host, int(port)) or (new and not self._link.retry()):
            self._logger.notice(f"{state.leader} leads the group {self._config.group} in epoch {state.epoch}")
            self._roles.become_replica(host, int(port))

    async def lead(self, state: ServerGroupState | None, epoch: int) -> None:
        """Lead if the state names this member and the epoch. If it does not, delete the key.

        Raises CoordinatorError, and CommandError if the new history can't begin.
        """
        if state is None or state.epoch != epoch or state.leader != self.name:
            await self.give_up()
            return
        self.in_sync.begin(state, self.name, self.store.version)
        self.led = self.epoch = epoch
        self.on_led()
        try:
            self._roles.lead_epoch(secrets.token_hex(12) + f"{epoch:016x}")
        except CommandError:
            self.stop_leading()
            await self.give_up()
            raise
        self.phase = "leading"
        self._link.cluster.epoch = epoch
        self._logger.notice(
            f"This member leads the group {self._config.group} in epoch {epoch}; in sync: {', '.join(state.in_sync)}"
        )
        self.in_sync.recount()

    async def give_up(self) -> None:
        """Delete the leader's key that this member has created. Raises CoordinatorError."""
        key, self.key = self.key, 0
        await self.store.give_up_lead(key)

    def resign(self) -> None:
        """Be no leader any more, if this member leads. The clients with withheld replies are disconnected."""
        if self.led:
            self.stop_leading()
            self._roles.unfollow()

    def stop_leading(self) -> None:
        """Release no more replies, and end a planned failover."""
        self.in_sync.silence()
        if self.led:
            self.led = 0
            self.on_led()
        self.end_handover()

    def end_handover(self) -> None:
        """Accept writes again, if a planned failover was in progress."""
        if self.target:
            self.target = ""
            self._pauses.hold_writes(False)

    async def certain(self, change: Callable[[], Awaitable[ServerGroupState | None]]) -> ServerGroupState | None:
        """Repeat a change until its outcome is known, as long as the lease is valid. Raises CoordinatorError."""
        while True:
            try:
                return await change()
            except CoordinatorError:
                if not self.presence.valid():
                    raise
                await asyncio.sleep(SHORT_WAIT)
