"""The keys of a group at the coordinator, and the compare-and-set loop that changes its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.interface import Coordinator, CoordinatorError, Lease
from respserver.group import document
from respserver.group.document import GroupStateError, ServerGroupState

TRIES: Final = 50  # of one change: each conflict is another member's change, and these are few


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

    def encode(self) -> bytes:
        """Return the JSON document."""
        return json.dumps({
            "id": self.id, "address": self.address, "process": self.process, "vacant": self.vacant, "end": self.end,
            "damaged": self.damaged,
        }).encode()  # fmt: skip


class GroupStore:
    """The keys of one group."""

    def __init__(self, coordinator: Coordinator, group: str) -> None:
        self.coordinator: Final = coordinator
        self._top = f"tidelog/groups/{group}"
        self.state_key: Final = f"{self._top}/state"
        self.leader_key: Final = f"{self._top}/leader"
        self.state: ServerGroupState | None = None  # as last read or changed
        self.version = 0  # of that state

    # -- the state -----------------------------------------------------------------------------------------------
    async def read(self) -> ServerGroupState | None:
        """Read the state. Raises CoordinatorError, GroupStateError."""
        found = await self.coordinator.get(self.state_key)
        if found is None:
            self.state, self.version = None, 0
        elif found.version != self.version:
            self.state, self.version = document.decode(found.value), found.version
        return self.state

    async def change(
        self,
        decide: Callable[[ServerGroupState], ServerGroupState | None],
        sending: Callable[[ServerGroupState, int], None] | None = None,
    ) -> ServerGroupState | None:
        """Change the state by compare-and-set. Returns the new state, or None if ``decide`` returned None.

        ``decide`` is called again with a newer state after a conflict. ``sending`` is called before the change is sent,
        with the new state and the version that it replaces. Raises CoordinatorError if the outcome is unknown. Raises
        GroupStateError if the state is missing or invalid, or if ``decide`` does.
        """
        for _ in range(TRIES):
            state = await self.read()
            if state is None:
                raise GroupStateError(f"the coordinator has lost the state of the group: {document.REMEDY}")
            wanted = decide(state)
            if wanted is None or wanted == state:
                return None if wanted is None else state
            if sending is not None:
                sending(wanted, self.version)
            version = await self.coordinator.swap(self.state_key, wanted.encode(), self.version)
            if version is not None:
                self.state, self.version = wanted, version
                return wanted
        raise CoordinatorError(f"the state of the group changed {TRIES} times before it could be updated")

    async def create(self, state: ServerGroupState) -> bool:
        """Create the state of a new group. Return False if another member has created it. Raises CoordinatorError."""
        version = await self.coordinator.swap(self.state_key, state.encode(), 0)
        if version is not None:
            self.state, self.version = state, version
        return version is not None

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
