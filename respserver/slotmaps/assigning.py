"""TCLUSTER ASSIGN: empty slots leave this group.

    search    all keys and stages are searched, while clients are served. The keys of calls that write to the slots
              meanwhile are noted.
    hold      if there is no key, calls for the slots wait, from the same turn of the event loop on
    confirm   the in-sync set acknowledges the log up to here: the slots are empty at each later leader, too
    change    the map is changed by compare-and-set. Its outcome is repeated until it is known.
    release   when the leader of the new owner has written that it uses the new map, the waiting calls get MOVED

Rule 1: calls wait for at most move-pause. If the change has not been sent by then, nothing has changed. If its outcome
is unknown then, calls for the slots get CLUSTERDOWN until it is known.
Rule 2: the new owner must have seen the map first. Otherwise it would send the clients back, and they would alternate
until they give up. If it does not write so within move-pause, the calls are released.
Rule 3: a call that was planned by an older version of the map gives away no slots that the group has received since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from commands.slots import NO_SLOTS, slot_of
from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.slotmap import SlotMap, SlotMapError, SlotRange
from respserver.clients.pauses import Pauses
from respserver.execution.blocking import Blocking
from respserver.execution.slices import Slicing
from respserver.group.membership import GroupMembership
from respserver.runtime.ownership import table, without
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.slotmaps.cleaning import is_staged, staged_in
from respserver.slotmaps.keeper import MapKeeper
from storage.keyspace.exporting import letters_of
from storage.keyspace.moving import letters_elsewhere

AT_ONCE: Final = 1000  # names that are searched before other clients have their turn: 0.3 ms
TURN: Final = 0.0  # seconds between two of these parts; longer in simulations, which have few keys
POLL: Final = 0.001  # seconds
RETRY: Final = 0.02  # seconds
BUSY: Final = "other slots of this group are being assigned or moved: try again later"


class SlotAssignment(ServerPart):
    """Assigns slots, one call at a time."""

    def __init__(
        self, parts: RuntimeParts, keeper: MapKeeper, membership: GroupMembership, pauses: Pauses, slicing: Slicing,
        blocking: Blocking,
    ) -> None:  # fmt: skip
        super().__init__(parts)
        self._keeper = keeper
        self._standing = membership.standing
        self._in_sync = membership.in_sync
        self._pauses = pauses
        self._slicing = slicing
        self._blocking = blocking
        self.busy = False  # slots of this group are being assigned or moved

    async def assign(self, ranges: Sequence[SlotRange], to: str) -> None:
        """Assign slots that are unassigned, or that this group owns and that have no keys. ``to`` "": to no group.

        Raises SlotMapError with the reason, CoordinatorError, OSError.
        """
        known = await self._keeper.current()
        own = slotmap.owners_of(known, ranges).get(self._keeper.group, [])
        if to == self._keeper.group:
            own = []
        led = self._standing.led if self._slots.leads else 0
        self._propose(known, ranges, to, own, led)
        if to and to != self._keeper.group:
            await self.check_leader(to)
        if not own:
            await self._keeper.change(lambda slots: self._changed(slots, ranges, to, own, led))
            return
        if self.busy:
            raise SlotMapError(BUSY)
        self.busy = True
        try:
            await self._empty(own)
            await self._give_away(ranges, own, to, led)
        finally:
            self.busy = False
            self._slots.note(NO_SLOTS)
            self._data.ks.stages.watched = None
            self._slots.hold(NO_SLOTS)
            self._pauses.retry()
            self._blocking.redirect_slots()
            self._blocking.resume_slots()

    def _propose(
        self, known: SlotMap, ranges: Sequence[SlotRange], to: str, own: Sequence[SlotRange], led: int
    ) -> None:  # fmt: skip
        """Raise SlotMapError if the change is not possible. The text names the leader that can make it."""
        owners = slotmap.owners_of(known, ranges)
        self.check_owners(known, {owner: owned for owner, owned in owners.items() if owner != to})
        self._changed(known, ranges, to, own, led)

    async def check_leader(self, to: str) -> None:
        """Raise SlotMapError if a group has no leader: nobody would serve the slots. Raises CoordinatorError."""
        if await self._keeper.store.coordinator.get(f"tidelog/groups/{to}/leader") is None:
            raise SlotMapError(
                f"group {to} has no leader now, so nobody would serve the slots: start its members, or try again after"
                " its failover"
            )

    def check_owners(self, known: SlotMap, owners: dict[str, list[SlotRange]]) -> None:
        """Raise SlotMapError if slots belong to another group, or this member does not lead. The text names the leader
        that can assign them."""
        led = self._standing.led if self._slots.leads else 0
        for owner, owned in owners.items():
            if owner and not (owner == self._keeper.group and led):
                group = known.groups[owner]
                leader = group.members[group.leader]
                raise SlotMapError(
                    f"{slotmap.said(owned)}: group {owner} is the owner, and only its leader can assign its slots: send"
                    f" the command to {leader.host}:{leader.port or leader.tls_port}"
                )

    def _changed(
        self, slots: SlotMap, ranges: Sequence[SlotRange], to: str, own: Sequence[SlotRange], led: int
    ) -> SlotMap:  # fmt: skip
        """Return the changed map. Raises SlotMapError if other slots than ``own``, in which there are no keys, would
        leave this group (Rule 3)."""
        group = self._keeper.group
        leaving = slotmap.owners_of(slots, ranges).get(group, []) if to != group else []
        if without(table(leaving), table(list(own))) != NO_SLOTS:
            raise SlotMapError(
                f"the map has changed: now {slotmap.said(leaving)} {slotmap.belong(leaving)} to this group: try again"
            )
        return slotmap.assign(slots, ranges, to, self._clock.now(), "TCLUSTER ASSIGN", group, led)

    # -- search --------------------------------------------------------------------------------------------------
    async def _empty(self, own: Sequence[SlotRange]) -> None:
        """Raise SlotMapError if there are keys. Otherwise, calls for the slots wait when it returns."""
        wanted = table(list(own))
        self._slots.note(wanted)
        # a blocked reader of another slot may write dead letters (MULTISLOT)
        self._slots.noted.update([key for key in self._blocking.named() if wanted[slot_of(key)]])
        await self._end_of_long_writes()
        ks, cursor, total, example = self._data.ks, 0, 0, b""
        while True:
            cursor, names = ks.index.page(cursor, AT_ONCE)
            self._check_letters(wanted, names)
            found = [name for name in names if wanted[slot_of(name)] and self._exists(name)]
            total += len(found)
            example = example or (found[0] if found else b"")
            if not cursor:
                break
            await asyncio.sleep(TURN)
            if ks is not self._data.ks:
                raise SlotMapError("the data was replaced during the search for keys: try again")
        late_stages: set[bytes] = set()
        ks.stages.watched = late_stages
        staged = await staged_in(ks, wanted)
        await self._end_of_long_writes()
        late = [name for name in self._slots.noted if self._exists(name)]
        if total or late:
            self._refuse(own, total or len(late), example or late[0], False)
        if self._slots.too_many or ks is not self._data.ks:
            raise SlotMapError(f"clients write to {slotmap.said(own)} all the time: stop them, and try again")
        if staged := staged or [name for name in late_stages if is_staged(ks, name, wanted)]:
            self._refuse(own, len(staged), staged[0], True)
        self._slots.hold(wanted)
        self._slots.note(NO_SLOTS)
        self._blocking.redirect_slots()  # with TRYAGAIN, if only some of their slots leave

    async def _end_of_long_writes(self) -> None:
        """Wait until no command that began earlier writes in slices: it may write keys that it has named before."""
        while self._slicing.writing:  # noqa: ASYNC110
            await asyncio.sleep(POLL)

    def _check_letters(self, wanted: bytes, names: list[bytes]) -> None:
        """Raise SlotMapError if a group of a key that stays has its dead-letter stream in a slot that would leave."""
        for key, letter in letters_of(self._data.ks, names):
            if wanted[slot_of(letter)] and not wanted[slot_of(key)]:
                raise SlotMapError(str(letters_elsewhere(key, letter)))

    def _exists(self, name: bytes) -> bool:
        ks, now = self._data.ks, self._clock.now()  # read once: a key without a deadline exists at each time
        return name in ks.keys and ks.expires.get(name, now + 1) > now

    @staticmethod
    def _refuse(own: Sequence[SlotRange], count: int, example: bytes, staged: bool) -> None:
        shown = example[:100].decode("utf-8", "backslashreplace")
        what, remedy = "key", "use TCLUSTER MOVE, delete {}, or assign other slots"
        if staged:
            what, remedy = "stage", "publish or drop {}"
        remedy = remedy.format("it" if count == 1 else "them")
        raise SlotMapError(
            f"{slotmap.said(own)} of this group: there {'is' if count == 1 else 'are'} {count}"
            f" {what}{'' if count == 1 else 's'}, for example {shown!r}, and only empty slots can be assigned: {remedy}"
        )

    # -- change --------------------------------------------------------------------------------------------------
    async def _give_away(self, ranges: Sequence[SlotRange], own: Sequence[SlotRange], to: str, led: int) -> None:
        """Change the map while calls for the slots wait."""
        until = self._loop.time() + self._config.move_pause / 1000
        await self._confirm(until)
        held = table(list(own))
        late = self._loop.call_at(until, lambda: self._give_up_waiting(held))
        try:
            version = await self._certain(ranges, to, own, led)
            while to and self._loop.time() < until and not self._served(to, version):  # noqa: ASYNC110
                await asyncio.sleep(POLL)
        finally:
            late.cancel()

    async def _confirm(self, until: float) -> None:
        """Wait until the in-sync set has acknowledged the log. Raises SlotMapError if it takes too long."""
        while self._data.ks.log:  # the records of this turn are not in the log yet
            self._wait_until(until)
            await asyncio.sleep(0)
        end = self._ticks.log_end()
        while self._in_sync.confirmed() < end:
            self._wait_until(until)
            await asyncio.sleep(POLL)

    def _wait_until(self, until: float) -> None:
        if self._loop.time() > until:
            raise SlotMapError(
                f"the in-sync set has not acknowledged the log within move-pause ({self._config.move_pause} ms), so"
                " nothing has changed: try again, or set move-pause to a higher value"
            )

    def _give_up_waiting(self, held: bytes) -> None:
        self._slots.hold(held, waiting=False)
        self._pauses.retry()

    def _served(self, to: str, version: int) -> bool:
        """Return whether the leader of a group uses a version of the map."""
        known = self._keeper.map
        return known is not None and to in known.groups and known.groups[to].seen >= version

    async def _certain(
        self, ranges: Sequence[SlotRange], to: str, own: Sequence[SlotRange], led: int
    ) -> int:  # fmt: skip
        """Change the map, and return its version. Repeat it until the outcome is known, or this member does not lead
        any more."""
        while True:
            try:
                changed = await self._keeper.change(lambda slots: self._changed(slots, ranges, to, own, led))
            except (CoordinatorError, OSError) as error:
                if self._standing.led != led:
                    raise SlotMapError(
                        f"this member does not lead any more, and the outcome is unknown: {error}"
                    ) from error
                await asyncio.sleep(RETRY)
            else:
                return changed.version if changed is not None else 0
