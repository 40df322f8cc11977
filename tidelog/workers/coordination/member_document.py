"""The document that says who takes part in a processor, and who should own what.

    app:shop:members:bill = {"version": 1, "revision": 7,
        "members": {"w1": {"epoch": 17, "capacity": 1, "joined": 1700000000000}, ...},
        "owners": ["w1", "w2", ...],       the member that should own each partition, or null
        "waiting": ["w3"]}                 members that have joined and have no share yet, the last one last

Rule 1: it changes by SET IFEQ on exactly the bytes that were read, so changes come one after another and none is lost.
Rule 2: every change may be made twice. Who lost a reply looks again, and makes it again if it is not there.
Rule 3: it says what should be. What is, the claims say.
Rule 4: who leaves or is dead is taken out and its partitions are given away in one change. Who joins waits first, so
        that many who start together cause one new assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.coordination.membership import check_names, with_member, without_members
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call
from tidelog.workers import logs
from tidelog.workers.coordination.assignment import assign

VERSION: Final = 1
_unreadable: Final = UnreadableDocuments(logs.get(__name__))


class MembersError(ValueError):
    """The members document on the server has a newer version."""


class Member(msgspec.Struct, frozen=True):
    """A worker that takes part. It is alive while its lease has this epoch."""

    epoch: int  # of its lease
    capacity: int = 1  # its share, in proportion to the others'
    joined: int = 0  # ms since 1970, on its own clock: for people


class Members(msgspec.Struct, frozen=True):
    """The document."""

    version: int = VERSION
    revision: int = 0  # counts changes
    members: dict[str, Member] = {}
    owners: list[str | None] = []
    waiting: list[str] = []

    def __post_init__(self) -> None:
        check_names([*self.members, *self.waiting, *filter(None, self.owners)])

    def of(self, worker: str) -> list[int]:
        """The partitions that a worker should own."""
        return [partition for partition, owner in enumerate(self.owners) if owner == worker]

    # -- changes: each returns the document itself where nothing changes ------------------------------------------
    def joined(self, worker: str, member: Member) -> Members:
        """With a worker that takes part. One that comes back under another epoch keeps its share."""
        members = with_member(self.members, worker, member)
        if members is self.members:
            return self
        return self._changed(members=members, waiting=[*self.waiting, *({worker} - self.members.keys())])

    def without(self, gone: Mapping[str, int], partitions: int) -> Members:
        """Without workers, each under the epoch given; what they had is the others'."""
        left = without_members(self.members, gone)
        return self if left is self.members else self._changed(members=left).assigned(partitions)

    def settled(self, partitions: int) -> Members:
        """With a share for everyone who waits."""
        return self.assigned(partitions) if self.waiting or len(self.owners) != partitions else self

    def assigned(self, partitions: int) -> Members:
        """With partitions assigned anew."""
        capacities = {name: member.capacity for name, member in self.members.items()}
        return self._changed(owners=assign(self.owners, capacities, partitions), waiting=[])

    def _changed(self, **fields: Any) -> Members:
        return msgspec.structs.replace(self, revision=self.revision + 1, **fields)


def decoded(key: str, text: bytes | None) -> Members:
    """The document from its JSON; an empty one for None. See ``documents.decode`` for invalid ones."""
    if text is None:
        return Members()
    return documents.decode(key, text, Members, VERSION, _unreadable, MembersError) or Members()


def read(key: str) -> Steps[Members]:
    """The document as it is."""
    (text,) = checked((yield [strings.get(key)]))
    return decoded(key, text)


def change(key: str, how: Callable[[Members], Members], also: Sequence[Call[Any]] = ()) -> Steps[Members]:
    """Change the document; returns it as it is then. ``also``: calls that are sent with each attempt.

    ``how`` may be called several times, and returns its argument where nothing is to be changed.
    """

    def edit(text: bytes | None) -> tuple[bytes | None, Members]:
        before = decoded(key, text)
        after = how(before)
        return (text if after is before else msgspec.json.encode(after)), after

    return documents.change(key, edit, also)
