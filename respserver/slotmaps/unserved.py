"""Finds the keys of this group in slots that it does not own: no client can use them.

A group has such keys if it had data before it joined the cluster, or if the map was changed by hand.

Rule 1: the keys are counted when this member begins to lead, and when the slots of its group change, not for each
question: while the slots are the same, no client can add such a key. A leader that owns all slots counts nothing.
Decision: 1000 names take 0.3 ms, and a pause of 2 ms follows, so ten million keys take 23 s and 13 % of the time of the
event loop. Counters for each slot would cost every command that adds or removes a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from commands.slots import ALL_SLOTS, NO_SLOTS, SLOTS, slot_of
from coordinator import slotmap
from coordinator.slotmap import SlotRange
from respserver.group.standing import MemberStanding
from respserver.runtime.ownership import NO_UNSERVED, UnservedKeys, table, without
from respserver.runtime.parts import RuntimeParts, ServerPart
from storage.keyspace.keyspace import Keyspace

AT_ONCE: Final = 1000  # names that are examined before other clients have their turn
PAUSE: Final = 0.002  # seconds between two of these parts
SHOWN: Final = 3  # ranges of slots that the warning names


class _Search:
    """One search."""

    def __init__(self, ks: Keyspace, own: bytes, now: Callable[[], int]) -> None:
        self.ks = ks
        self._own, self._now = own, now
        self._cursor, self._keys, self._example, self._slots = 0, 0, b"", bytearray(SLOTS)

    def advance(self) -> bool:
        """Examine AT_ONCE names, and return whether these were the last ones."""
        self._cursor, names = self.ks.index.page(self._cursor, AT_ONCE)
        now, hidden = self._now(), self.ks.hidden  # keys that are moving are no problem
        for name in names:
            slot = slot_of(name)
            if not self._own[slot] and not (hidden is not None and hidden(name)) and _exists(self.ks, name, now):
                self._keys += 1
                self._slots[slot] = 1
                self._example = self._example or name
        return not self._cursor

    def result(self) -> UnservedKeys:
        """Return the keys that were found."""
        return UnservedKeys(self._keys, self._example, _ranges(self._slots)) if self._keys else NO_UNSERVED


class UnservedSearch(ServerPart):
    """Searches the keys in the background. The result is ``SlotOwnership.unserved``."""

    def __init__(self, parts: RuntimeParts, standing: MemberStanding) -> None:
        super().__init__(parts)
        self._standing = standing
        self._searched: tuple[int, Keyspace] | None = None  # the epoch and the data of the last search
        self._own: bytes = NO_SLOTS  # the slots of the group then
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Start a search if its result can have changed. Called about once per second."""
        slots = self._slots
        if not slots.leads or slots.map is None:
            slots.unserved, self._searched = NO_UNSERVED, None
            return
        if self._task is not None and not self._task.done():
            return
        own = table(slots.map.ranges(slots.group))
        if self._due(own):
            self._searched, self._own = (self._standing.led, self._data.ks), own
            if own == ALL_SLOTS:
                slots.unserved = NO_UNSERVED
            else:
                search = _Search(self._data.ks, own, self._clock.now)
                if search.advance():  # few keys
                    self._found(search)
                else:
                    self._task = self._loop.create_task(self._complete(search))

    def _due(self, own: bytes) -> bool:
        ks, known = self._data.ks, self._slots.unserved
        if self._searched is None or self._searched[0] != self._standing.led or self._searched[1] is not ks:
            return True
        if known.keys:
            return own != self._own or not _exists(ks, known.example, self._clock.now())
        return without(self._own, own) != NO_SLOTS

    async def finish(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _complete(self, search: _Search) -> None:
        led, finished = self._standing.led, False
        while not finished:
            await asyncio.sleep(PAUSE)
            if search.ks is not self._data.ks or led != self._standing.led:
                self._searched = None
                return
            finished = search.advance()
        self._found(search)

    def _found(self, search: _Search) -> None:
        known = self._slots.unserved = search.result()
        if known.keys:
            self._logger.warning(f"Cluster {self._config.cluster_name}: {warning(known, self._slots.group)}")


def warning(unserved: UnservedKeys, group: str) -> str:
    """Return the warning about unserved keys, with the remedy."""
    shown = unserved.example[:100].decode("utf-8", "backslashreplace")
    few = " ".join(map(str, unserved.slots[:SHOWN]))
    more = " ..." if len(unserved.slots) > SHOWN else ""
    count, them = ("1 key", "it") if unserved.keys == 1 else (f"{unserved.keys} keys", "them")
    return (
        f"group {group} has {count}, for example {shown!r}, in slots that it does not own"
        f" ({slotmap.said(unserved.slots)}), so no client can use {them}: assign these slots to the group (tidelog"
        f" cluster move {few}{more} --to {group}), or start it with an empty directory"
    )


def _ranges(found: bytearray) -> tuple[SlotRange, ...]:
    """Return the slots of a table as ranges."""
    made, at = [], found.find(1)
    while at >= 0:
        end = found.find(0, at)
        last = (end if end >= 0 else SLOTS) - 1
        made.append(SlotRange(at, last))
        at = found.find(1, last + 1)
    return tuple(made)


def _exists(ks: Keyspace, name: bytes, now: int) -> bool:
    return name in ks.keys and ks.expires.get(name, now + 1) > now
