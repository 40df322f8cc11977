"""The keys of a group at the coordinator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from coordinator.interface import Coordinator, Lease
from coordinator.stored import StoredDocument
from respserver.group import document
from respserver.group.document import GroupStateError, ServerGroupState


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """The value of the key ``leader``."""

    name: str
    epoch: int
    version: int  # of the key


@dataclass(frozen=True, slots=True)
class Presence:
    """The value of a key ``members/MEMBER``."""

    id: str  # of the member's directory
    address: str
    process: str  # identifies one start of the member
    vacant: int = 0  # the epoch whose leader it is a candidate to succeed; 0: it is not a candidate
    end: int = 0  # the end of its log then
    damaged: bool = False  # its store is damaged then
    lease: str = ""  # the long lease of a member that follows, to which the key is bound; "": it may lead

    def encode(self) -> bytes:
        """Return the JSON document."""
        return json.dumps({
            "id": self.id, "address": self.address, "process": self.process, "vacant": self.vacant, "end": self.end,
            "damaged": self.damaged, **({"lease": self.lease} if self.lease else {}),
        }).encode()  # fmt: skip


def _lost() -> GroupStateError:
    return GroupStateError(f"the coordinator has lost the state of the group: {document.REMEDY}")


class GroupStore(StoredDocument[ServerGroupState]):
    """The keys of one group."""

    def __init__(self, coordinator: Coordinator, group: str) -> None:
        self._top = f"tidelog/groups/{group}"
        super().__init__(coordinator, f"{self._top}/state", document.decode, _lost, "the state of the group")
        self.leader_key: Final = f"{self._top}/leader"

    @property
    def state(self) -> ServerGroupState | None:
        """The state as last read or changed."""
        return self.value

    # -- the leader ----------------------------------------------------------------------------------------------
    async def leader(self) -> LeaderKey | None:
        """Return the leader; None if there is none. Raises CoordinatorError."""
        found = await self.coordinator.get(self.leader_key)
        if found is None:
            return None
        value = _parsed(found.value)
        return LeaderKey(str(value.get("name")), int(value.get("epoch", 0)), found.version)

    async def take_lead(self, name: str, epoch: int, lease: Lease) -> int | None:
        """Create the leader's key with a lease. Return its version, or None if there is a leader. Raises
        CoordinatorError."""
        value = json.dumps({"name": name, "epoch": epoch}).encode()
        return await self.coordinator.swap(self.leader_key, value, 0, lease)

    async def give_up_lead(self, version: int) -> None:
        """Delete the leader's key of this version. Raises CoordinatorError."""
        await self.coordinator.swap(self.leader_key, None, version)

    # -- the members ---------------------------------------------------------------------------------------------
    def _member_key(self, name: str) -> str:
        return f"{self._top}/members/{name}"

    async def presence(self, name: str) -> tuple[Presence, int] | None:
        """Return the published data of a live member and the version of its key; None if the key does not exist. Raises
        CoordinatorError."""
        found = await self.coordinator.get(self._member_key(name))
        if found is None:
            return None
        value = _parsed(found.value)
        try:
            return Presence(**value), found.version
        except TypeError:  # of a newer version
            return Presence(str(value.get("id")), str(value.get("address")), str(value.get("process"))), found.version

    async def publish(self, name: str, presence: Presence, version: int, lease: Lease) -> int | None:
        """Create (version 0) or change a member's key. Return its version, or None after a conflict. Raises
        CoordinatorError."""
        return await self.coordinator.swap(self._member_key(name), presence.encode(), version, lease)


def _parsed(value: bytes) -> dict[str, Any]:
    """Parse a JSON object. Return {} if the value is not one."""
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
