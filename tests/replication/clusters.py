"""A cluster of several server groups as real processes, with the coordinator ``file:``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from commands.slots import SLOTS
from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.groups import Group
from tests.wire.rawclient import Raw
from tidelog.transport.slots import slot_of


class ServerGroup(Group):
    """One group of a cluster. Its members are named 1a, 1b, ..."""

    def __init__(self, servers: Cluster, name: str, members: int, **config: Any) -> None:
        super().__init__(servers, members, **{"group": name, "cluster_enabled": "yes", "min_in_sync": 1, **config})
        self.group: Final = name

    def add(self, start: bool = True, **config: Any) -> Node:
        node = super().add(start=False, **config)
        node.config["group-member"] = f"{self.config['group']}{chr(ord('a') + len(self.nodes) - 1)}"
        if start:
            node.start()
        return node


class Groups:
    """A cluster. The groups are named 1, 2, ..., and share the slots evenly, as far as ``divide`` is not False."""

    def __init__(
        self, servers: Cluster, groups: int = 2, members: int = 1, divide: bool = True, **config: Any
    ) -> None:  # fmt: skip
        self.servers = servers
        self.groups: list[ServerGroup] = []
        for _ in range(groups):
            self.add(members, **config)
        if divide:
            self.divide()

    def add(self, members: int = 1, **config: Any) -> ServerGroup:
        """Start another group, which owns no slots unless it is the first one."""
        made = ServerGroup(self.servers, str(len(self.groups) + 1), members, **config)
        self.groups.append(made)
        made.wait()
        self.agree()
        return made

    @property
    def nodes(self) -> list[Node]:
        """The members of all groups."""
        return [node for group in self.groups for node in group.nodes]

    def leader(self, group: int | str) -> Node:
        """Return the leader of a group, once it leads."""
        return self.groups[int(group) - 1].wait()

    def divide(self) -> None:
        """Assign the slots evenly, in the order of the groups."""
        count = len(self.groups)
        bounds = [SLOTS * at // count for at in range(count + 1)]
        for at in range(1, count):
            self.assign(f"{bounds[at]}-{bounds[at + 1] - 1}", to=str(at + 1))

    def assign(self, *ranges: str, to: str, at: int | str = 1) -> None:
        """Assign empty slots of the group ``at``, and wait until all members have seen it."""
        reply = self.leader(at).say("TCLUSTER", "ASSIGN", *ranges, "TO", to)
        assert reply == b"OK", reply
        self.agree()

    def move(self, *ranges: str, to: str, at: int | str = 1) -> None:
        """Move slots of the group ``at`` with their keys, and wait until the move has ended."""
        reply = self.leader(at).say("TCLUSTER", "MOVE", *ranges, "TO", to)
        assert reply == b"OK", reply
        wait_until(lambda: not self.agree()["moves"], "the end of the move")

    def owner(self, key: str) -> str:
        """Return the name of the group that has a key."""
        slot = slot_of(key)
        return str(next(group for first, last, group in self.agree()["slots"] if first <= slot <= last))

    def agree(self, *nodes: Node) -> dict[str, Any]:
        """Wait until these members have the same map, or all that run, and each group has a leader. Return the map."""

        def agreed() -> dict[str, Any] | None:
            found = [cluster_status(node) for node in nodes or self.nodes if node.running]
            maps = [each["map"] for each in found]
            serving = {each["group"] for each in found if each["leads"]}
            if maps[0] is None or any(each != maps[0] for each in maps):
                return None
            running = {group.group for group in self.groups if any(node.running for node in group.nodes)}
            return maps[0] if nodes or serving == running else None

        found = wait_until(agreed, "members with the same map")
        assert found is not None
        return found

    def url(self, socket_timeout: int | None = None) -> str:
        """Return a URL with the addresses of all members."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis://{hosts}{f'?socket_timeout={socket_timeout}' if socket_timeout else ''}"

    def startup(self) -> list[tuple[str, int]]:
        """Return the addresses of all members, for clients."""
        return [("127.0.0.1", node.port) for node in self.nodes]


def cluster_status(node: Node) -> dict[str, Any]:
    """Return what TCLUSTER STATUS of a member says."""
    with Raw(node.port) as raw:
        found: dict[str, Any] = json.loads(raw("TCLUSTER", "STATUS"))
    return found


def slot_ranges(node: Node) -> list[tuple[int, int, int]]:
    """Return CLUSTER SLOTS of a member: the ends of each range, and the port of its leader."""
    found: Sequence[Any] = node.say("CLUSTER", "SLOTS")
    return [(first, last, leader[1]) for first, last, leader, *_ in found]
