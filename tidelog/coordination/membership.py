"""Members of a set of processes, as a document lists them: each has the epoch of its lease.

A process that restarts has another epoch. It replaces its predecessor, and removing the predecessor, which names the
old epoch, does not affect it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar


class HasEpoch(Protocol):
    """A member, which has an epoch."""

    @property
    def epoch(self) -> int:
        """The epoch of its lease. The member is alive while its lease has this epoch."""


M = TypeVar("M", bound=HasEpoch)


def with_member(members: dict[str, M], name: str, member: M) -> dict[str, M]:
    """Return the members with a new one. Returns ``members`` itself if it is already there."""
    known = members.get(name)
    if known is not None and known.epoch == member.epoch:
        return members
    return {**members, name: member}


def without_members(members: dict[str, M], gone: Mapping[str, int]) -> dict[str, M]:
    """Return the members without those in ``gone``, each under its epoch. Returns ``members`` itself if none match."""
    left = {name: each for name, each in members.items() if gone.get(name) != each.epoch}
    return members if len(left) == len(members) else left


def check_names(names: list[str]) -> None:
    """Raise ValueError if a name can't be that of a process, because it could not be sent or be part of a claim."""
    for name in names:
        name.encode()
        if not name or "|" in name:
            raise ValueError(f"{name!r} is not the name of a process")
