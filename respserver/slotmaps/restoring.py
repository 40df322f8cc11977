"""TCLUSTER RESTORE: an administrator lets a member write its map to a coordinator that has lost it.

The coordinator has no map, a damaged one, or an older version, which was restored from a backup, or its state of this
group was recreated, so the group has another ID. The member can't know whether other members have seen a later
version, so it never does this by itself.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator import slotmap
from coordinator.interface import CoordinatorError, Versioned
from coordinator.slotmap import DamagedMapError, SlotMap, SlotMapError
from respserver.group.membership import GroupMembership
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.slotmaps.keeper import MapKeeper


class MapRestoration(ServerPart):
    """Restores the map from this member's copy."""

    def __init__(self, parts: RuntimeParts, keeper: MapKeeper, membership: GroupMembership) -> None:
        super().__init__(parts)
        self._keeper = keeper
        self._membership = membership

    async def restore(self) -> None:
        """Write the map. Raises SlotMapError if there is nothing to restore, CoordinatorError."""
        own = self._keeper.map
        state = self._membership.store.state
        if own is None or state is None:
            raise SlotMapError("this member has no map to restore")
        store = self._keeper.store
        stored = await store.coordinator.get(store.key)
        found = _decoded(stored)
        base = found if found is not None and found.version >= own.version else own
        if found is not None and found.cluster_id != own.cluster_id:
            raise SlotMapError(
                f"the coordinator has the map of another cluster (ID {found.cluster_id}, this member has"
                f" {own.cluster_id}): set cluster-name to another name"
            )
        restored = self._renamed(base, state.group_id)
        if restored == found:
            raise SlotMapError("the coordinator has the current map: there is nothing to restore")
        restored = replace(restored, version=restored.version + 1)
        version = stored.version if stored is not None else 0
        if await store.coordinator.swap(store.key, restored.encode(), version) is None:
            raise CoordinatorError("the map was changed at the same time")
        self._keeper.read_again()

    def _renamed(self, slots: SlotMap, group_id: str) -> SlotMap:
        """Return the map with the current ID of this group, whose epochs may begin again."""
        name = self._keeper.group
        known = slots.groups.get(name)
        if known is None or known.id == group_id:
            return slots
        return replace(slots, groups={**slots.groups, name: replace(known, id=group_id, epoch=0)})


def _decoded(stored: Versioned | None) -> SlotMap | None:
    """Return the map at the coordinator; None if it is missing or damaged. Raises SlotMapError for another format."""
    try:
        return slotmap.decode(stored.value) if stored is not None else None
    except DamagedMapError:
        return None
