"""The plan of a cluster on one machine: its groups, members, ports, and settings. Pure functions, no I/O.

    {"format": 1, "created": true, "bind": "127.0.0.1", "port": 7000, "replicas": 1, "last_group": 2,
     "groups": {"1": {"1a": 0, "1b": 1}, "2": {"2a": 2, "2b": 3}},      port of a member - "port"
     "settings": {"appendfsync": ["everysec"]}}

Rule 1: a group keeps its name, and a member its name and port, while the directory exists. The name of a removed group
        is not used again: its data may still exist.
Rule 2: groups and replicas are added only. A group is removed by ``without`` after its slots have been moved.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.cluster.errors import ClusterError
from tidelog.operating.tables import counted

FORMAT: Final = 1
MOST_REPLICAS: Final = len(string.ascii_lowercase) - 1  # a group has a leader and these
MOST_GROUPS: Final = 1000
LAST_PORT: Final = 65535


@dataclass(frozen=True)
class PlannedMember:
    """A member: its name, its group, and its port."""

    name: str
    group: str
    port: int


@dataclass(frozen=True)
class ClusterPlan:
    """The plan. Each change returns another one. Raises ClusterError if the ports are not possible."""

    port: int  # of the first member
    bind: str  # addresses, separated by blanks
    replicas: int  # of each group
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # members: port - ``port``, by group
    last_group: int = 0  # the number of the newest group
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    created: bool = False  # the map exists at the coordinator

    def __post_init__(self) -> None:
        last = max((each.port for each in self.members), default=self.port)
        if last > LAST_PORT:
            raise ClusterError(f"the members need the ports {self.port} to {last}: use a --port below {LAST_PORT}")

    @property
    def members(self) -> list[PlannedMember]:
        """All members, by group."""
        return [
            PlannedMember(name, group, self.port + offset)
            for group, members in self.groups.items()
            for name, offset in members.items()
        ]

    @property
    def password(self) -> str | None:
        """The password of the user default; None if there is none."""
        return self.settings.get("requirepass", ("",))[0] or None

    def extended(self, groups: int, replicas: int) -> ClusterPlan:
        """Add groups and replicas until there are as many. Raises ClusterError if there are more already."""
        if groups < len(self.groups):
            raise ClusterError(
                f"the cluster has {counted(len(self.groups), 'group')}, and --groups is {groups}: a group that has keys"
                " cannot be omitted. Move its slots to other groups (tidelog cluster rebalance --without GROUP), and"
                " remove it (tidelog cluster remove GROUP)"
            )
        if replicas < self.replicas:
            raise ClusterError(
                f"each group has {counted(self.replicas, 'replica')}, and --replicas is {replicas}: replicas are not"
                " removed. Omit the option, or copy the data to a new cluster"
            )
        if groups > MOST_GROUPS or replicas > MOST_REPLICAS:
            raise ClusterError(f"at most {MOST_GROUPS} groups, and {MOST_REPLICAS} replicas of each, are possible")
        found = {name: dict(members) for name, members in self.groups.items()}
        last = self.last_group
        while len(found) < groups:
            last += 1
            found[str(last)] = {}
        offset = 1 + max((each for members in found.values() for each in members.values()), default=-1)
        for group, members in found.items():
            for letter in string.ascii_lowercase[: 1 + replicas]:
                if f"{group}{letter}" not in members:
                    members[f"{group}{letter}"] = offset
                    offset += 1
        return replace(self, groups=found, replicas=replicas, last_group=last)

    def without(self, group: str) -> ClusterPlan:
        """Remove a group. Raises ClusterError if there is none with this name, or if it is the only one."""
        if group not in self.groups:
            raise ClusterError(f"there is no group {group}: the groups are {', '.join(self.groups)}")
        if len(self.groups) == 1:
            raise ClusterError(f"group {group} is the only one: to end the cluster, stop it and delete its directory")
        return replace(self, groups={name: members for name, members in self.groups.items() if name != group})

    def with_group(self, group: str, members: Mapping[str, int]) -> ClusterPlan:
        """Add a group that was removed."""
        return replace(self, groups={**self.groups, group: dict(members)})

    def encode(self) -> str:
        """Return the JSON document."""
        return json.dumps({
            "format": FORMAT, "created": self.created, "bind": self.bind, "port": self.port, "replicas": self.replicas,
            "last_group": self.last_group, "groups": self.groups, "settings": self.settings,
        }, indent=1) + "\n"  # fmt: skip

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """The settings of all members.

        On one machine, replicas protect from the end of a process, which the next leader survives alone. With two
        replicas, two members must be in sync, as the server requires by default.
        """
        found = dict(self.settings)
        if self.replicas < 2:
            found.setdefault("min-in-sync", ("1",))
        if "requirepass" in found:
            found.setdefault("masterauth", found["requirepass"])
        return found


def decode(document: str, name: str) -> ClusterPlan:
    """Parse the JSON document, which has this name in error messages. Raises ClusterError."""
    try:
        found: Any = json.loads(document)
        if found["format"] != FORMAT:
            raise ClusterError(
                f"{name} has format {found['format']}, but this version of tidelog supports only format {FORMAT}:"
                " use the version that has written it"
            )
        plan = ClusterPlan(
            _number(found["port"], LAST_PORT), str(found["bind"]), _number(found["replicas"], MOST_REPLICAS),
            {
                str(group): {str(member): _number(offset, LAST_PORT) for member, offset in members.items()}
                for group, members in found["groups"].items()
            },
            _number(found["last_group"], 1 << 31),
            {str(each): tuple(map(str, values)) for each, values in found["settings"].items()},
            found["created"] is True,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ClusterError(f"{name} is damaged ({error!r}): restore it from a backup, or use another --dir") from None
    names = [each.name for each in plan.members]
    ports = [each.port for each in plan.members]
    if len(set(names)) != len(names) or len(set(ports)) != len(ports) or not all(map(_plain, (*plan.groups, *names))):
        raise ClusterError(f"{name} is damaged (its members): restore it from a backup, or use another --dir")
    return plan


def _number(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(value)
    return value


def _plain(name: str) -> bool:
    return name.isascii() and name.isalnum()
