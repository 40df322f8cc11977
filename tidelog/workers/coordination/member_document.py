"""The document that lists the members of a processor and the assigned owners of its partitions.

    app:shop:members:bill = {"version": 1, "revision": 7,
        "members": {"w1": {"epoch": 17, "capacity": 1, "joined": 1700000000000}, ...},
        "owners": ["w1", "w2", ...],       the assigned owner of each partition, or null
        "waiting": ["w3"]}                 members that have joined and have no share yet, the newest last

Rule 1: the document is changed by SET IFEQ with the bytes that were read, so changes are serialized and none is lost.
Rule 2: every change is idempotent. After a lost reply, the document is read again, and the change repeated if missing.
Rule 3: the document states who should own a partition. The claims state who does.
Rule 4: a member that leaves or is dead is removed, and its partitions are reassigned, in one change. A member that
        joins waits first, so that many workers that start together cause one assignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidelog.coordination.documents import VersionedDocument
from tidelog.coordination.membership import check_names, with_member, without_members
from tidelog.workers import logs
from tidelog.workers.coordination.assignment import assign

VERSION: Final = 1


class MembersError(ValueError):
    """The member document on the server has a newer version."""


class Member(msgspec.Struct, frozen=True):
    """A worker that is a member. It is alive while its lease has this epoch."""

    epoch: int  # of its lease
    capacity: int = 1  # its share relative to the other members
    joined: int = 0  # ms since 1970, on the member's clock; for display only


class MemberDocument(msgspec.Struct, frozen=True):
    """The member document."""

    version: int = VERSION
    revision: int = 0  # number of changes
    members: dict[str, Member] = {}
    owners: list[str | None] = []
    waiting: list[str] = []

    def __post_init__(self) -> None:
        check_names([*self.members, *self.waiting, *filter(None, self.owners)])

    def of(self, worker: str) -> list[int]:
        """Return the partitions that a worker should own."""
        return [partition for partition, owner in enumerate(self.owners) if owner == worker]

    # -- changes: each returns ``self`` if nothing changes --------------------------------------------------------
    def joined(self, worker: str, member: Member) -> MemberDocument:
        """Add a worker. A worker that returns under another epoch keeps its share."""
        members = with_member(self.members, worker, member)
        if members is self.members:
            return self
        return self._changed(members=members, waiting=[*self.waiting, *({worker} - self.members.keys())])

    def without(self, gone: Mapping[str, int], partitions: int) -> MemberDocument:
        """Remove workers, each under the given epoch, and reassign their partitions."""
        left = without_members(self.members, gone)
        return self if left is self.members else self._changed(members=left).assigned(partitions)

    def settled(self, partitions: int) -> MemberDocument:
        """Give a share to all members that wait."""
        return self.assigned(partitions) if self.waiting or len(self.owners) != partitions else self

    def assigned(self, partitions: int) -> MemberDocument:
        """Assign the partitions to the members."""
        capacities = {name: member.capacity for name, member in self.members.items()}
        return self._changed(owners=assign(self.owners, capacities, partitions), waiting=[])

    def _changed(self, **fields: Any) -> MemberDocument:
        return msgspec.structs.replace(self, revision=self.revision + 1, **fields)


MEMBERS: Final = VersionedDocument(MemberDocument, VERSION, MembersError, logs.get(__name__))
decoded, read, change = MEMBERS.decoded, MEMBERS.read, MEMBERS.change
