"""The parts of a member that its other parts use: one object for constructors, and attributes for the other parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from respserver.clients.pauses import Pauses
from respserver.group.identity import Identity
from respserver.group.insync import InSync
from respserver.group.presence import MemberPresence
from respserver.group.states import GroupStore
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.parts import RuntimeParts, ServerPart


class GroupRoles(Protocol):
    """The methods of ``Roles`` that a member uses."""

    def become_replica(self, host: str, port: int, force: bool = False) -> None: ...
    def unfollow(self) -> None:
        """Become a replica without a leader."""

    def lead_epoch(self, replid: str) -> None:
        """Begin a new history with this ID, and accept writes. Raises CommandError; nothing has changed then."""


@dataclass(frozen=True)
class MemberParts:
    """Passed to the constructors of the parts of a member."""

    identity: Identity
    address: str  # host:port at which the other members reach it
    store: GroupStore
    presence: MemberPresence
    in_sync: InSync
    roles: GroupRoles
    replicas: Replicas
    link: LeaderLink
    pauses: Pauses
    wake: Callable[[], None]  # lets the member decide again


class MemberPart(ServerPart):
    """A part of a member that uses these."""

    def __init__(self, parts: RuntimeParts, member: MemberParts) -> None:
        super().__init__(parts)
        self.name = member.identity.member
        self.store = member.store
        self.presence = member.presence
        self.in_sync = member.in_sync
        self._member = member
        self._roles = member.roles
        self._link = member.link
        self._wake = member.wake
