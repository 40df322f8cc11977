"""The slots whose keys only another group may change now: those that are copied to this group, those that have left it
and whose keys are not deleted yet, and those that are about to leave.

Rule 1: nothing of these keys expires, is evicted, or is delivered by this server (``Keyspace.park``).
Rule 2: SCAN, KEYS and RANDOMKEY don't show the keys, except those that are about to leave.
Rule 3: this server appends no dead letter to a key whose slot another group owns, or whose slot is about to leave
(``Keyspace.foreign``).
Rule 4: FLUSHALL is refused while keys are copied to this group, and while slots are about to leave: it could delete
what another group has acknowledged, or leave what it should delete.
"""

from __future__ import annotations

from typing import Final

from commands.slots import ALL_SLOTS, NO_SLOTS, slot_of
from respserver.runtime.ownership import either
from respserver.runtime.parts import RuntimeParts, ServerPart

FLUSH: Final = "slots are moving between groups: try again later"


class InertSlots(ServerPart):
    """Each table has a 1 for each of its slots."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts)
        self.copied: bytes = NO_SLOTS
        self.left: bytes = NO_SLOTS
        self.leaving: bytes = NO_SLOTS
        self.own: bytes = ALL_SLOTS  # those of this group, as the map says

    def apply(self) -> None:
        """Apply the tables to the keyspace. Called after changes, and when the keyspace was replaced."""
        ks = self._data.ks
        hidden = either(self.copied, self.left)
        inert = either(hidden, self.leaving)
        ks.hidden = None if hidden == NO_SLOTS else lambda key: hidden[slot_of(key)] != 0
        ks.inert = None if inert == NO_SLOTS else lambda key: inert[slot_of(key)] != 0
        ks.foreign = self._is_foreign if self._slots.mapped else None
        ks.flush_refused = FLUSH if (self.copied, self.leaving) != (NO_SLOTS, NO_SLOTS) else ""
        ks.unpark()
        self._ticks.queue()

    def _is_foreign(self, key: bytes) -> bool:
        slot = slot_of(key)
        return not self.own[slot] or self._slots.held[slot] != 0
