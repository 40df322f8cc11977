"""Copies the groups of a stream with their consumers and pending entries.

The order for each group is: its position (Rule 3 of the package), its pending entries, its consumers. Only differences
are written, so a repetition costs two reads.

A pending entry that was deleted cannot be created at the target, because XCLAIM refuses it. It is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.client.entries import StreamId
from tidelog.moving import descriptions
from tidelog.moving.descriptions import (
    ConsumerDescription,
    GroupDescription,
    PendingDescription,
    StreamDescription,
    dashed,
)
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.merged import merged

SLACK: Final = 5  # tolerance for delivery times in ms: clocks are read in whole ms
IDS: Final = 500  # IDs per command
COMMANDS: Final = 500  # commands per round trip


@dataclass(slots=True)
class CopiedGroup:
    """A group of the source when it was last copied. If it is unchanged, nothing has to be done."""

    group: GroupDescription
    consumers: dict[bytes, ConsumerDescription]

    def same(self, other: CopiedGroup) -> bool:
        return (
            self.group == other.group
            and self.consumers.keys() == other.consumers.keys()
            and all(
                one.pending == other.consumers[name].pending and abs(one.seen - other.consumers[name].seen) <= SLACK
                for name, one in self.consumers.items()
            )
        )


@dataclass(slots=True)
class Carried:
    """The state of the groups of a stream when they were copied."""

    consumers: int = 0
    pending: int = 0
    gone: int = 0  # pending entries that were deleted
    changed: bool = False  # something was written
    seen: dict[bytes, CopiedGroup] = field(default_factory=dict)
    gone_of: dict[bytes, int] = field(default_factory=dict)  # ``gone`` by group


def carry(
    source: Endpoint, target: Endpoint, key: bytes, here: StreamDescription, there: StreamDescription,
    before: Carried | None = None,
) -> Carried:  # fmt: skip
    """Make the groups of the target equal to those of ``here``. Skip groups that have not changed since ``before``.

    All entries up to ``here.last`` must be at the target.
    """
    done = Carried()
    for name in there.groups.keys() - here.groups.keys():
        target.ask("XGROUP", "DESTROY", key, name)
        done.changed = True
    for name, group in here.groups.items():
        seen = CopiedGroup(group, descriptions.consumers(source, key, name))
        done.seen[name] = seen
        done.consumers += len(seen.consumers)
        done.pending += group.pending
        old = before.seen.get(name) if before is not None else None
        if before is not None and old is not None and name in there.groups and seen.same(old):
            done.gone_of[name] = before.gone_of[name]
        else:
            copy = _GroupCopy(source, target, key, here, group)
            copy.run(there.groups.get(name))
            done.changed |= copy.changed
            done.gone_of[name] = copy.gone
        done.gone += done.gone_of[name]
    return done


class _GroupCopy:
    """Copies one group. Collects changes of the pending entries at the target, and sends them together."""

    def __init__(
        self, source: Endpoint, target: Endpoint, key: bytes, here: StreamDescription, group: GroupDescription
    ) -> None:
        self.gone = 0
        self.changed = False
        self._owners: set[bytes] = set()
        self._source = source
        self._target = target
        self._key = key
        self._here = here
        self._group = group
        self._acks: list[str] = []
        self._claims: list[Command] = []
        self._alike: tuple[bytes, int, int] | None = None  # the properties that the IDs share
        self._ids: list[str] = []

    def run(self, there: GroupDescription | None) -> None:
        """Copy the group. ``there``: the group of this name at the target."""
        self._offset(there)
        self._pending()
        self._consumers()

    def _offset(self, there: GroupDescription | None) -> None:
        group = self._group
        read: Command = () if group.read is None else ("ENTRIESREAD", group.read)
        if there is None:
            self._target.ask("XGROUP", "CREATE", self._key, group.name, dashed(group.last), "MKSTREAM", *read)
            self.changed = True
        elif (there.last, there.read) != (group.last, group.read):
            self._target.ask("XGROUP", "SETID", self._key, group.name, dashed(group.last), *read)
            self.changed = True

    def _remove(self, at: StreamId) -> None:
        self._acks.append(dashed(at))
        if len(self._acks) >= IDS:
            self._send()

    def _make(self, row: PendingDescription) -> None:
        """Make an entry pending as it is at the source. Entries that were delivered together become one command."""
        alike = (row.consumer, row.delivered, row.count)
        if alike != self._alike or len(self._ids) >= IDS:
            self._close()
            self._alike = alike
        self._ids.append(dashed(row.id))

    def _close(self) -> None:
        if self._alike is not None and self._ids:
            consumer, delivered, count = self._alike
            self._claims.append(
                ("XCLAIM", self._key, self._group.name, consumer, 0, *self._ids,
                 "TIME", max(0, delivered), "RETRYCOUNT", count, "FORCE", "JUSTID")
            )  # fmt: skip
            self._ids = []
            if len(self._claims) >= COMMANDS:
                self._send()

    def _send(self) -> None:
        commands: list[Command] = [*self._claims]
        if self._acks:
            commands.append(("XACK", self._key, self._group.name, *self._acks))
        asked = sum(command.index("TIME", 6) - 5 for command in self._claims)
        replies: list[Any] = self._target.all(commands) if commands else []
        claimed = sum(len(reply) for reply in replies[: len(self._claims)])
        self.gone += asked - claimed
        self.changed |= bool(claimed or self._acks)
        self._claims, self._acks = [], []

    def _flush(self) -> None:
        self._close()
        self._send()

    def _pending(self) -> None:
        key, group, here = self._key, self._group, self._here
        late: list[PendingDescription] = []  # after the group's position
        left, right = (descriptions.pending(end, key, group.name) for end in (self._source, self._target))
        for mine, its in merged(left, right, lambda row: row.id):
            if mine is None:
                if its is not None:
                    self._remove(its.id)
                continue
            self._owners.add(mine.consumer)
            if its is not None and alike(mine, its):
                continue
            if its is None and here.is_trimmed(mine.id):
                self.gone += 1
            elif mine.id <= group.last:
                self._make(mine)
            elif mine.id <= here.last:
                late.append(mine)
        self._flush()
        if late and self._last() == group.last:  # created by XCLAIM FORCE, not delivered since
            for row in late:
                self._make(row)
            self._flush()

    def _last(self) -> StreamId | None:
        now = descriptions.stream(self._source, self._key)
        return now.groups[self._group.name].last if now is not None and self._group.name in now.groups else None

    def _consumers(self) -> None:
        key, group = self._key, self._group.name
        mine, its = (descriptions.consumers(end, key, group).keys() for end in (self._source, self._target))
        # Entries that a T command delivered have an owner with an empty name, which is not a consumer at the source.
        commands: list[Command] = [("XGROUP", "CREATECONSUMER", key, group, name) for name in mine - its]
        commands += [("XGROUP", "DELCONSUMER", key, group, name) for name in its - mine - self._owners]
        for begin in range(0, len(commands), COMMANDS):
            self._target.all(commands[begin : begin + COMMANDS])
            self.changed = True


def alike(one: PendingDescription, other: PendingDescription) -> bool:
    """Return whether two pending entries are equal within the tolerance for times."""
    return (one.consumer, one.count) == (other.consumer, other.count) and abs(one.delivered - other.delivered) <= SLACK
