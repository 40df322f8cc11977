"""A planned failover: the leader hands over to a member of the in-sync set.

Rule 1: writes wait until the other member has the whole log on disk.
Rule 2: a leader that hands over stops releasing replies before it makes the other member the leader. Reads wait until
the outcome is known: the reply to a read that ran could not be sent, because the new leader may have newer data then.
Rule 3: a leader whose store is damaged hands over if another member of the set has an undamaged store. It leaves the
set with that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from coordinator.interface import CoordinatorError
from resp.errors import CommandError
from respserver.group import document
from respserver.group.document import ServerGroupState
from respserver.group.parts import MemberPart, MemberParts
from respserver.group.standing import MemberStanding
from respserver.runtime.parts import RuntimeParts

STAY_SECONDS: Final = 30.0  # between two attempts to hand over because of a damaged store


class Handover(MemberPart):
    """The planned failover of a leader. Its target is an attribute of the member's standing."""

    def __init__(self, parts: RuntimeParts, member: MemberParts, standing: MemberStanding) -> None:
        super().__init__(parts, member)
        self._standing = standing
        self._replicas = member.replicas
        self._pauses = member.pauses
        self._give_up_at = 0.0  # loop time when it stops to hand over
        self._stays_until = 0.0  # loop time before which it does not hand over again because of a damaged store
        self.done = asyncio.Event()  # the last one has succeeded
        self.leaving = False  # this server stops, so it also leaves the in-sync set: replies would wait for it

    def fail_over(self, target: str, timeout_ms: int) -> None:
        """Hand over to a member of the in-sync set; "": the most up-to-date one. Raises CommandError."""
        if not self._standing.led or not self.in_sync.leading:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if self._standing.target:
            raise CommandError("ERR FAILOVER already in progress.")
        if target and self.in_sync.damaged(target):
            raise CommandError(f"ERR FAILOVER target must have an undamaged store: that of {target} is damaged.")
        connected = self.in_sync.successors()
        if not connected:
            raise CommandError("ERR FAILOVER requires another connected member in the in-sync set.")
        if target and target not in connected:
            raise CommandError(f"ERR FAILOVER target must be a connected member of the in-sync set: {target} is not.")
        best = max(connected, key=lambda name: connected[name].on_disk)
        self._standing.target = target or best
        self._give_up_at = self._loop.time() + (timeout_ms or self._config.in_sync_timeout) / 1000
        self._logger.notice(f"Failover: writes wait until {self._standing.target} has the whole log")
        self.done.clear()
        self._pauses.hold_writes(True)
        self._wake()

    def target_named(self, host: str, port: int) -> str:
        """Return the name of the member at this address. Raises CommandError."""
        for feed in self._replicas.feeds:
            if (feed.host, feed.port) == (host, port) and feed.group_member:
                return feed.group_member
        raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")

    def abort(self, why: str) -> None:
        """Abort the planned failover, and continue to lead. Raises CommandError if none is in progress."""
        if not self._standing.target:
            raise CommandError("ERR No failover in progress.")
        if not self.in_sync.leading:
            raise CommandError(f"ERR FAILOVER can't be aborted any more: {self._standing.target} may lead already.")
        self._logger.warning(f"Failover to {self._standing.target} aborted: {why}")
        self._standing.end_handover()

    def due(self) -> bool:
        """Return whether this leader should hand over because of a damaged store (Rule 3)."""
        if not (self.in_sync.leading and self._data.disk.scrub.damaged) or self._standing.target:
            return False
        return self._loop.time() >= self._stays_until and bool(self.in_sync.successors())

    def begin_if_due(self) -> None:
        if self.due():
            self._stays_until = self._loop.time() + STAY_SECONDS
            self._logger.warning("The store of this member is damaged: it hands over")
            self.fail_over("", 0)

    async def step(self) -> None:
        """Make the target the leader once it has the whole log."""
        target = self._standing.target
        self._pauses.hold_writes(True)  # reads continue if an earlier attempt had no effect
        if not self._has_everything(target):
            return
        self.in_sync.silence()
        self._pauses.hold_writes(True, reads=True)
        try:
            state = await self._standing.certain(lambda: self.store.change(partial(self._decide, target)))
        except CoordinatorError:
            return  # no replies are released until the next reading shows the outcome
        if state is None:
            if self.store.state is not None:
                self.in_sync.begin(self.store.state, self.name, self.store.version)
            self.abort("the state of the group has changed")
        else:
            await self._follow(state)

    def _has_everything(self, target: str) -> bool:
        """Return whether the target has the whole log. If it can't have it any more, abort the failover."""
        data, feed = self._data, self.in_sync.feed(target)
        if self._loop.time() > self._give_up_at:
            self.abort("TIMEOUT has expired")
            return False
        if feed is None or target not in self.in_sync.names:
            self.abort("it is disconnected or no longer in the in-sync set")
            return False
        settled = not (data.ks.log or self._ticks.stalled or self._ticks.withheld_since() is not None)
        if settled and feed.on_disk == data.disk.offset:
            return True
        feed.alive(wanted=True)
        return False

    def _decide(self, target: str, state: ServerGroupState) -> ServerGroupState | None:
        """Return the state with the target as the leader; None if this member may not hand over to it any more."""
        if state.epoch == self._standing.led + 1 and state.leader == target:
            return state  # a request of unknown outcome was successful
        if state.epoch != self._standing.led or target not in state.in_sync:
            return None
        why = "it stops" if self.leaving else "its store is damaged" if self._data.disk.scrub.damaged else ""
        cause = f"{self.name} handed over{', because ' if why else ''}{why}"
        return document.hand_over(state, target, self._clock.now(), cause, stays=not why)

    async def _follow(self, state: ServerGroupState) -> None:
        """Follow the new leader."""
        try:
            await self._standing.give_up()  # first, because the other member waits for it
        finally:
            self._standing.follow(state, leads=False)
        self.done.set()
