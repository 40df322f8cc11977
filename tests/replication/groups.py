"""A server group as real processes, and a writer that counts what was acknowledged."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from typing import Any

import redis

from tests.replication.cluster import Cluster, Node, connect, wait_until

_streams = itertools.count()


class Group:
    """Members of one group, on one machine."""

    def __init__(self, servers: Cluster, members: int = 3, coordinator: str = "", **config: Any) -> None:
        self.servers = servers
        self.url = coordinator or f"file://{servers.top}/coordinator"
        self.config = {"group_lease": 2000, "in_sync_timeout": 2000, "repl_timeout": 60, **config}
        self.nodes: list[Node] = []
        for _ in range(members):
            self.add()

    def add(self, start: bool = True, **config: Any) -> Node:
        """A new member."""
        node = self.servers.node(start=False, **{"group": "tide", "coordinator": self.url, **self.config, **config})
        node.config["group-member"] = f"m{len(self.nodes) + 1}"
        self.nodes.append(node)
        if start:
            node.start()
        return node

    def replace(self, node: Node, program: str) -> Node:
        """Stop a member, and start it with another program in Python."""
        node.kill()
        made = Node(node.directory, node.config, [sys.executable, "-c", program])
        self.servers.nodes.append(made)
        self.nodes[self.nodes.index(node)] = made
        made.start()
        return made

    def name(self, node: Node) -> str:
        return str(node.config["group-member"])

    def wait(self, *nodes: Node, members: int | None = None) -> Node:
        """Wait until these members, or all, are in sync and one leads; return the leader."""
        wanted = {self.name(node) for node in nodes or self.nodes}

        def ready() -> Node | None:
            leader = self.leader(*nodes)
            found = status(leader) if leader is not None else {}
            idle = not found.get("withheld_clients", True)  # it is missing if the member does not lead any more
            return leader if set(found.get("in_sync", ())) == wanted and idle else None

        return wait_until(ready, f"{wanted} in sync")  # type: ignore[return-value]  # it is true

    def leader(self, *nodes: Node) -> Node | None:
        for node in nodes or self.nodes:
            try:
                if node.running and status(node)["phase"] == "leading":
                    return node
            except (redis.RedisError, OSError):
                continue
        return None

    def others(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each is not node]


def status(node: Node) -> dict[str, Any]:
    """What TMEMBER STATUS of a member says."""
    client = redis.Redis(port=node.port, socket_timeout=1, socket_connect_timeout=1)
    with client:
        found: dict[str, Any] = json.loads(client.execute_command("TMEMBER", "STATUS"))
    return found


class Writer(threading.Thread):
    """Appends numbers to a stream, one after another, at whichever member leads."""

    def __init__(self, group: Group) -> None:
        super().__init__(daemon=True)
        self.group = group
        self.stream = f"numbers:{next(_streams)}"
        self.acknowledged: list[tuple[int, float]] = []  # number, monotonic seconds of the reply
        self.unknown: set[int] = set()  # numbers of appends without a reply
        self.longest = 0.0  # seconds between two replies
        self._ended = threading.Event()
        self._ports = [node.port for node in group.nodes]

    def __enter__(self) -> Writer:
        self.start()
        wait_until(lambda: self.acknowledged, "the first append")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(20)
        assert not self.is_alive()

    def run(self) -> None:
        at, number = 0, 0
        client: redis.Redis | None = None
        while not self._ended.is_set():
            try:
                if client is None:
                    client = connect(self._ports[at], socket_timeout=1)
                    client.ping()
                number += 1
                self.unknown.add(number)
                client.execute_command("TAPPEND", self.stream, "n", number)
                self.unknown.discard(number)
                now = time.monotonic()
                if self.acknowledged:
                    self.longest = max(self.longest, now - self.acknowledged[-1][1])
                self.acknowledged.append((number, now))
            except (redis.ResponseError, redis.RedisError, OSError) as error:
                if str(error).startswith(("READONLY", "You can't write", "NOREPLICAS")):  # it did not run
                    self.unknown.discard(number)
                if client is not None:
                    client.close()
                client, at = None, (at + 1) % len(self._ports)
                time.sleep(0.002)
        if client is not None:
            client.close()

    def after(self, moment: float) -> float:
        """Wait for an append that was acknowledged after this moment (and sent after the fault); return the seconds."""

        def found() -> float | None:
            return next((at - moment for _, at in self.acknowledged[-5000:] if at > moment + 0.002), None)

        return wait_until(found, "an append is acknowledged again")  # type: ignore[return-value]

    def check(self, node: Node) -> None:
        """Check that each acknowledged number is there exactly once, and in order."""
        rows = self._numbers(node)
        assert rows == sorted(set(rows)), "in order, each once"
        missing = {number for number, _ in self.acknowledged} - set(rows)
        assert not missing, f"acknowledged and lost: {sorted(missing)[:10]}"
        assert set(rows) - {number for number, _ in self.acknowledged} <= self.unknown

    def _numbers(self, node: Node) -> list[int]:
        with connect(node.port) as client:
            rows: list[Any] = client.execute_command("XRANGE", self.stream, "-", "+")
            return [int(fields[b"n"]) for _, fields in rows]
