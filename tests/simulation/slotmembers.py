"""The members of the groups of a simulated cluster."""

from __future__ import annotations

from pathlib import Path

from storage.keyspace.digest import add_stream
from storage.streams.stream import Stream
from tests.simulation.groupmembers import GroupMember
from tests.simulation.network import NetworkLoop
from tests.simulation.slotchecks import MAP, keys_by_slot


class SlotMember(GroupMember):
    """A member of a group of a cluster."""

    counted = (MAP,)

    def __init__(
        self, loop: NetworkLoop, top: Path, number: int, settings: dict[str, str], drift: float, group: str
    ) -> None:  # fmt: skip
        super().__init__(loop, top, number, settings, drift)
        self.group = group

    @property
    def leads(self) -> bool:
        """Whether it leads its group, and has written that to the map."""
        return self.loaded and self._server.slots.leads

    def serves(self, slot: int) -> bool:
        """Return whether it runs calls for a slot, and may send the replies."""
        if not self.may_release():
            return False
        slots = self._server.slots
        return (
            slots.leads
            and slots.map is not None
            and slots.map.owner(slot) == slots.group
            and not slots.held[slot]
            and not slots.down
        )

    def contents(self, slot: int) -> dict[bytes, bytes]:
        """Return the contents of the keys of a slot; only if it is loaded."""
        found: dict[bytes, bytes] = {}
        for key in self.keys_of(slot):
            value = self._server.data.ks.keys[key]
            assert isinstance(value, Stream)
            parts: list[bytes] = []
            add_stream(value, parts.append)
            found[key] = b"".join(parts)
        return found

    def keys_of(self, slot: int) -> list[bytes]:
        """Return the keys of a slot; only if it is loaded."""
        return keys_by_slot(list(self._server.data.ks.keys), slot) if self.loaded else []


