"""Random events among four servers under random work, in any order; afterwards all servers are equal.

Invariant: after each round every server has the leader's content at the leader's offset. What WAIT promised of all
replicas is there, even when read back from disk, and no log file shows a bug.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable

import pytest
import redis

from tests.replication.cluster import Cluster, Node, assert_same, connect, wait_until
from tests.replication.proxy import Proxy
from tests.replication.workloads import WORKLOADS, Load

ROUNDS = 6


def done(order: Callable[[], None]) -> bool:
    """For wait_until(), which tries again while the server refuses."""
    order()
    return True


class Storm:
    """Four servers, each reached by its replicas through a proxy of its own."""

    def __init__(self, made: Cluster, rng: random.Random) -> None:
        self.random = rng
        self.nodes = [
            made.node(
                checkpoint_size="1mb", stream_node_max_entries=rng.choice((8, 64, 500)),
                appendfsync=rng.choice(("always", "everysec", "no")),
            )
            for _ in range(4)
        ]  # fmt: skip
        self.before: dict[Node, Proxy] = {node: made.proxy(node) for node in self.nodes}
        self.leader = self.nodes[0]
        self.parents: dict[Node, Node] = {}
        self.loads: list[Load] = []
        self.happened: list[str] = []
        self.leader("SET", "something", "logged")
        for node in self.nodes[1:]:
            self.follow(node, self.leader)

    def any(self) -> Node:
        return self.random.choice(self.nodes)

    def replica(self) -> Node:
        return self.random.choice([node for node in self.nodes if node is not self.leader])

    def moment(self) -> None:
        time.sleep(self.random.random() * 0.3)  # when something happens is random, too

    def follow(self, node: Node, parent: Node) -> None:
        # while it loads a copy it refuses, and without this a restart would make it a leader
        wait_until(lambda: done(lambda: node.follow(self.before[parent].port)), f"{node} is told to follow")
        self.parents[node] = parent

    def family(self, node: Node) -> set[Node]:
        """The node and all that follow it, directly or not: it can't follow any of them."""
        found = {node}
        while more := {child for child, parent in self.parents.items() if parent in found} - found:
            found |= more
        return found

    def crown(self, node: Node) -> None:
        """Make a node the leader and send clients there."""
        self.leader = node
        self.parents.pop(node, None)
        node.config.pop("replicaof", None)
        for load in self.loads:
            load.switch(node)

    # -- events --------------------------------------------------------------------------------------------------
    def cut(self) -> None:
        self.before[self.any()].cut()

    def cut_later(self) -> None:
        self.before[self.any()].down.cut(after=self.random.randrange(20_000))

    def corrupt(self) -> None:
        self.before[self.any()].down.corrupt(after=self.random.randrange(20_000))

    def hold(self) -> None:
        proxy = self.before[self.any()]
        flow = self.random.choice((proxy.down, proxy.up))
        flow.hold()
        self.moment()
        flow.release()

    def kill(self) -> None:
        node = self.any()
        node.kill()
        self.moment()
        node.start()

    def kill_all(self) -> None:
        for action in (Node.kill, Node.start):
            for node in self.random.sample(self.nodes, 4):
                action(node)

    def restart(self) -> None:
        self.any().restart()

    def freeze(self) -> None:
        node = self.any()
        node.freeze()
        self.moment()
        node.thaw()

    def checkpoint(self) -> None:
        with contextlib.suppress(redis.ResponseError):  # one is under way
            self.any()("SAVE")

    def backlog(self) -> None:
        for node in self.nodes:
            node("CONFIG", "SET", "repl-backlog-size", self.random.choice((1, 10_000, 10_000_000)))

    def rewire(self) -> None:
        node = self.replica()
        self.follow(node, self.random.choice([other for other in self.nodes if other not in self.family(node)]))

    def promote(self) -> None:
        new, old = self.replica(), self.leader
        killed = self.random.random() < 0.5
        if killed:
            old.kill()
        incomplete = False

        def promoted() -> bool:
            nonlocal incomplete
            try:
                new.lead()
            except redis.ResponseError as error:
                if "has not caught up" not in str(error):
                    raise
                incomplete = killed  # it catches up only while the old leader runs
                return killed
            return True

        wait_until(promoted, f"{new} accepts REPLICAOF NO ONE")  # it may be loading a copy
        if incomplete:
            old.start()
            return
        self.crown(new)
        old.start()
        self.follow(old, new)

    def failover(self) -> None:
        old = self.leader
        try:
            old("FAILOVER", "TIMEOUT", 1500)
        except redis.ResponseError:
            return  # it has no replica just now
        wait_until(lambda: old.info()["master_failover_state"] == "no-failover", "the failover has ended")
        if old.role == "slave":
            children = [child for child, parent in self.parents.items() if parent is old]
            new = wait_until(lambda: next((node for node in children if node.role == "master"), None), "one leads")
            assert new is not None
            self.crown(new)
            self.follow(old, new)

    # -- rounds --------------------------------------------------------------------------------------------------
    def round(self) -> None:
        events: tuple[Callable[[], None], ...] = (
            self.cut, self.cut_later, self.corrupt, self.hold, self.kill, self.kill_all, self.restart, self.freeze,
            self.checkpoint, self.backlog, self.rewire, self.rewire, self.promote, self.promote, self.failover,
        )  # fmt: skip
        self.leader("FLUSHALL")
        workloads = [WORKLOADS[name]() for name in self.random.sample(list(WORKLOADS), 2)]
        self.loads = [Load(workload, self.leader, replicas=3) for workload in workloads]
        try:
            for event in self.random.choices(events, k=self.random.randrange(1, 5)):
                self.happened.append(event.__name__)
                with contextlib.suppress(redis.BusyLoadingError):
                    event()
                self.moment()
        finally:
            for proxy in self.before.values():
                proxy.calm()
            for load in self.loads:
                load.stop()
        replicas = [node for node in self.nodes if node is not self.leader]
        with connect(self.leader.port) as client:
            for workload in workloads:
                workload.check(client, workload.promised)
        assert_same(self.leader, *replicas)
        node = self.any()
        with contextlib.suppress(redis.ResponseError):  # a checkpoint is under way
            node("DEBUG", "LOADAOF")
        assert_same(self.leader, *replicas)
        for node in self.nodes:
            assert not node.logged("Traceback"), node.output[-40:]


@pytest.mark.parametrize("number", [1, 2])
def test_servers_are_equal_after_random_events(servers: Cluster, number: int) -> None:
    seed = number if os.environ.get("CI") else random.SystemRandom().randrange(1 << 30)
    storm = Storm(servers, random.Random(seed))
    try:
        for _ in range(ROUNDS):
            storm.happened.append("|")
            storm.round()
    except BaseException:
        print(f"seed {seed}:", *storm.happened)
        for node in storm.nodes:
            print(f"\n{node}, {'the leader' if node is storm.leader else f'follows {storm.parents.get(node)}'}")
            print(*node.output[-30:], sep="\n")
        raise
