"""The slots that this server serves (``cluster-enabled``).

Without a coordinator, it serves all slots, and there is no map. A member of a server group serves the slots that the
map of the cluster gives to its group (``coordinator.slotmap``), while it leads.

Rule 1: ``served`` has a 1 for each slot whose calls need no further check. The dispatcher's fast path looks only at it,
and at ``whole``. All other calls are checked by ``execution.redirects``.
Rule 2: a leader serves no slot until the map has its epoch: an earlier leader may still give slots away until then.
Rule 3: calls for slots that are about to leave the group wait (``held``), until the new owner has probably seen the
map, or get CLUSTERDOWN if that takes too long. Before that, while the server searches the slots for keys, the keys of
calls that write are noted (``noted``), because the search may have passed them.
Rule 4: the data of a replica comes from its leader, and the map from the coordinator. While the map is older than
``required``, keys of slots that it gives to the group may be deleted already, or may be copies that are incomplete.
While the data is older than a map that perhaps gave slots to the group (``gained``), their keys may be missing, or be
those from before the slots left the group. In both cases, the replica sends clients to its leader, even after READONLY.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from commands.slots import ALL_SLOTS, NO_SLOTS, SLOTS
from coordinator.slotmap import SlotMap, SlotRange

MOST_NOTED: Final = 10_000  # keys of calls that write to slots which are being searched


class UnservedKeys(NamedTuple):
    """Keys of this leader in slots that its group does not own. No client can use them."""

    keys: int  # how many there were at the last search
    example: bytes  # the name of one
    slots: tuple[SlotRange, ...]  # their slots


NO_UNSERVED: Final = UnservedKeys(0, b"", ())


class SlotOwnership:
    """The slots of one server. Used on the event loop only."""

    __slots__ = (
        "coverage", "down", "gained", "group", "held", "holding", "leads", "map", "mapped", "noted", "noting",
        "preparing", "required", "served", "too_many", "unheld", "unnoted", "unserved", "used", "waiting", "whole",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mapped = False  # the map says which slots this server serves
        self.map: SlotMap | None = None  # the last one; None: unknown
        self.group = ""  # the group of this server, by its name in the map
        self.leads = False  # it leads its group, and the map has its epoch
        self.preparing = False  # it leads its group, and is about to write its epoch to the map
        self.coverage = True  # cluster-require-full-coverage
        self.down = False  # the map leaves slots unassigned, which the directive forbids
        self.held: bytes = NO_SLOTS  # by slot: 1: calls wait
        self.unheld: bytes = ALL_SLOTS  # the others
        self.waiting = False  # calls for the slots in ``held`` wait; False: they get CLUSTERDOWN
        self.holding = False  # calls for some slots wait
        self.noting: bytes = NO_SLOTS  # by slot: 1: the keys of calls that write are noted
        self.unnoted: bytes = ALL_SLOTS  # the others
        self.noted: set[bytes] = set()
        self.too_many = False  # there were more than MOST_NOTED of these keys, and not all of them are noted
        self.required = 0  # the lowest version of the map with which the data can be read (Rule 4)
        self.used = 0  # the last version of the map that the leader had used when it logged the last of the data
        self.gained = 0  # the last version of the map that perhaps gave slots to this group
        self.served: bytes = ALL_SLOTS
        self.whole = True  # all slots are served
        self.unserved = NO_UNSERVED  # see slotmaps.unserved

    # -- changes -------------------------------------------------------------------------------------------------
    def be_mapped(self, group: str) -> None:
        """Serve only what the map gives to this group."""
        self.mapped, self.group = True, group
        self._update()

    def use(self, slots: SlotMap) -> None:
        """Use a version of the map. The first one, and one after a gap, perhaps gave slots to this group."""
        before, self.map = self.map, slots
        if before is None or slots.version > before.version + 1 or (
            before.slots != slots.slots
            and without(table(slots.ranges(self.group)), table(before.ranges(self.group))) != NO_SLOTS
        ):  # fmt: skip
            self.gained = slots.version
        self._update()

    def lead(self, leads: bool, preparing: bool = False) -> None:
        """Set whether this server may serve the slots of its group."""
        self.leads, self.preparing = leads, preparing
        self._update()

    def require(self, coverage: bool) -> None:
        """Set whether an unassigned slot stops the service."""
        if coverage != self.coverage:
            self.coverage = coverage
            self._update()

    def hold(self, held: bytes, waiting: bool = True) -> None:
        """Let the calls for these slots wait, and no others. ``waiting`` False: refuse them."""
        self.held, self.unheld, self.waiting = held, without(ALL_SLOTS, held), waiting
        self._update()

    def note(self, noting: bytes) -> None:
        """Note the keys of calls that write to these slots, from now on."""
        self.noting, self.unnoted, self.noted = noting, without(ALL_SLOTS, noting), set()
        self.too_many = False
        self._update()

    def _update(self) -> None:
        if not self.mapped:
            return
        unassigned = self.map is not None and bool(self.map.unassigned())
        self.down = unassigned and self.coverage
        self.holding = self.preparing or (self.waiting and self.held != NO_SLOTS)
        if self.map is None or not self.leads or self.down:
            self.served = NO_SLOTS
        else:
            own, slow = table(self.map.ranges(self.group)), either(self.held, self.noting)
            self.served = own if slow == NO_SLOTS else without(own, slow)
        self.whole = self.served == ALL_SLOTS

    # -- questions -----------------------------------------------------------------------------------------------
    def outdated(self) -> bool:
        """Return whether the map is older than the data, or the data older than the map (Rule 4)."""
        return self.map is not None and (self.map.version < self.required or self.used < self.gained)

    def waits(self, slot: int) -> bool:
        """Return whether calls for a slot of this group wait."""
        return self.preparing or (self.waiting and self.leads and self.held[slot] != 0)


def table(ranges: list[SlotRange]) -> bytes:
    """Return the table that has a 1 for each of these slots."""
    found = bytearray(SLOTS)
    for first, last in ranges:
        found[first : last + 1] = b"\x01" * (last - first + 1)
    return bytes(found)


def _number(slots: bytes) -> int:
    return int.from_bytes(slots, "little")


def either(a: bytes, b: bytes) -> bytes:
    """Return the table of the slots that are in at least one of two tables."""
    return (_number(a) | _number(b)).to_bytes(SLOTS, "little")


def without(a: bytes, b: bytes) -> bytes:
    """Return the table of the slots that are in one table and not in the other."""
    return (_number(a) & ~_number(b)).to_bytes(SLOTS, "little")
