"""TCLUSTER ASSIGN and its relatives: what clients of the slots see, and each way in which it is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest

from respserver.slotmaps import mapfile
from tests.replication.cluster import Cluster, Node, cluster, wait_until
from tests.replication.clusters import Groups, cluster_status, slot_ranges
from tests.wire.rawclient import Raw

# "b" has slot 3300, of group 1; "a" has slot 15495, of group 2


@pytest.fixture
def groups(shared: Groups) -> Iterator[Groups]:
    """Two groups without keys, with half of the slots each, now and after the test."""
    yield shared
    for name in ("1", "2"):
        node = shared.leader(name)
        node("CONFIG", "SET", "cluster-require-full-coverage", "yes", "cluster-allow-reads-when-down", "no")
        node("FLUSHALL")
    _repair(shared)


def _repair(shared: Groups) -> None:
    for first, last, owner in ((0, 8191, "1"), (8192, 16383, "2")):
        for name in ("1", "2"):
            shared.leader(name).say("TCLUSTER", "UNASSIGN", f"{first}-{last}")  # refused unless the group owns all
            owned = [
                each for each in shared.agree()["slots"] if each[2] == name and each[0] <= last and each[1] >= first
            ]
            for low, high, _ in owned:
                shared.assign(f"{max(low, first)}-{min(high, last)}", to=owner, at=name)
        shared.assign(f"{first}-{last}", to=owner, at=owner)


def _in_background(call: Callable[[], object]) -> Callable[[], object]:
    """Run a call in a thread. Return a function that waits for its result."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()

    def result() -> object:
        thread.join(20)
        return found[0]

    return result


def test_empty_slots_change_their_owner(groups: Groups) -> None:
    first, second = groups.leader(1), groups.leader(2)
    before = groups.agree()["version"]
    groups.assign("3300", "0-99", to="2")
    assert slot_ranges(first) == slot_ranges(second) == [
        (0, 99, second.port), (100, 3299, first.port), (3300, 3300, second.port), (3301, 8191, first.port),
        (8192, 16383, second.port),
    ]  # fmt: skip
    assert first.say("GET", "b") == f"MOVED 3300 127.0.0.1:{second.port}"
    assert second.say("SET", "b", "1") == b"OK"
    wait_until(lambda: groups.agree()["groups"]["2"]["seen"] == before + 1, "the new owner has seen it")
    event, seen = groups.agree()["events"][-2:]
    assert (event["version"], event["what"]) == (before + 1, "slots 0-99 3300 belong to group 2")
    assert (seen["version"], seen["what"]) == (before + 2, f"group 2 serves its slots of version {before + 1}")
    assert second.say("TCLUSTER", "ASSIGN", "3300", "TO", "2") == b"OK"  # nothing to do, although it has a key
    second("DEL", "b")


def test_slots_with_keys_stay(groups: Groups) -> None:
    first = groups.leader(1)
    first("MSET", "b", "1", "{b}2", "2")
    with Raw(first.port) as c:
        assert re.fullmatch(
            r"ERR slots 3000-4000 of this group: there are 2 keys, for example '(b|\{b\}2)', and only empty slots can"
            " be assigned: use TCLUSTER MOVE, delete them, or assign other slots",
            c("TCLUSTER", "ASSIGN", "3000-4000", "TO", "2"),
        )
        assert c("GET", "b") == b"1"
        c("PEXPIRE", "b", 1)
        c("DEL", "{b}2")
        wait_until(lambda: c("EXISTS", "b") == 0, "the expiry")
        assert c("TSTAGE", "{b}stage", 60_000, "b", "FIELDS", 1, "f", "VALUES", "v") == 1
        assert "there is 1 stage, for example '{b}stage'" in c("TCLUSTER", "ASSIGN", "3300", "TO", "2")
        c("TDROP", "{b}stage")
        assert c("TCLUSTER", "ASSIGN", "3300", "TO", "2") == b"OK"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["ASSIGN", "0-9", "5", "TO", "2"], "ERR the ranges 0-9 and 5 overlap: name each slot once"),
        (["ASSIGN", "0-16384", "TO", "2"], "ERR '0-16384' is not a range of slots: they are numbered from 0 to 16383"),
        (["ASSIGN", "x", "TO", "2"], "ERR 'x' is not a range of slots: write, for example, 0-4095"),
        (["ASSIGN", "0-9", "TO", "7"], "ERR the cluster has no group 7: it has 1, 2"),
        (["ASSIGN", "0-9", "12", "2"], "ERR syntax error"),
        (
            ["REMOVE", "2"],
            "ERR group 2 owns slots 8192-16383: move them to another group first (TCLUSTER MOVE ... TO group)",
        ),
        (["REMOVE", "7"], "ERR the cluster has no group 7: it has 1, 2"),
        (["RESTORE"], "ERR the coordinator has the current map: there is nothing to restore"),
    ],
)  # fmt: skip
def test_wrong_words(words: list[str], error: str, groups: Groups) -> None:
    assert groups.leader(1).say("TCLUSTER", *words) == error


def test_only_the_owner_gives_slots_away(groups: Groups) -> None:
    second = groups.leader(2)
    assert groups.leader(1).say("TCLUSTER", "ASSIGN", "9000", "TO", "1") == (
        "ERR slot 9000: group 2 is the owner, and only its leader can assign its slots: send the command to"
        f" 127.0.0.1:{second.port}"
    )


def test_a_map_with_gaps(groups: Groups) -> None:
    first, second = groups.leader(1), groups.leader(2)
    first("SET", "b", "1")
    assert second.say("TCLUSTER", "UNASSIGN", "15495") == b"OK"
    groups.agree()
    for node in (first, second):
        with Raw(node.port) as c:
            assert c("GET", "a") == "CLUSTERDOWN Hash slot not served"
            assert c("GET", "b") == "CLUSTERDOWN The cluster is down"
            assert c("PING") == b"PONG"
            facts = c("CLUSTER", "INFO").decode()
            assert "cluster_state:fail" in facts
            assert "cluster_slots_assigned:16383" in facts
            (warning,) = cluster_status(node)["warnings"]
            assert warning.startswith(
                "slot 15495 belongs to no group, so all calls with keys fail (CLUSTERDOWN): assign"
            )
    with Raw(first.port) as c:
        first("CONFIG", "SET", "cluster-allow-reads-when-down", "yes")
        assert c("GET", "b") == b"1"
        assert c("SET", "b", "2") == "CLUSTERDOWN The cluster is down and only accepts read commands"
        assert c("SPUBLISH", "b", "x") == 0
        first("CONFIG", "SET", "cluster-require-full-coverage", "no")
        assert c("SET", "b", "2") == b"OK"
        assert c("GET", "a") == "CLUSTERDOWN Hash slot not served"
        assert c("TCLUSTER", "ASSIGN", "15495", "TO", "1") == b"OK"  # anybody may assign it
        wait_until(lambda: c("SET", "a", "1") == b"OK", "the slot is served")
        c("DEL", "a")


# -- clients of the slots --------------------------------------------------------------------------------------------
def test_blocked_readers_are_redirected(groups: Groups) -> None:
    first, second = groups.leader(1), groups.leader(2)
    with Raw(first.port) as moved, Raw(first.port) as stays:
        moved.send("XREAD", "BLOCK", 0, "STREAMS", "b", "$")
        stays.send("XREAD", "BLOCK", 0, "STREAMS", "c", "$")
        wait_until(lambda: first.info("clients")["blocked_clients"] == 2, "two blocked readers")
        groups.assign("3300", to="2")
        assert moved.read() == f"MOVED 3300 127.0.0.1:{second.port}"
        first("XADD", "c", "1-1", "f", "v")
        assert stays.read() == [[b"c", [[b"1-1", [b"f", b"v"]]]]]


def test_watched_and_cached_keys_and_subscriptions_end(groups: Groups) -> None:
    first = groups.leader(1)
    with Raw(first.port) as watcher, Raw(first.port, proto=3) as caching, Raw(first.port) as listener:
        watcher("WATCH", "b")
        caching("CLIENT", "TRACKING", "ON")
        assert caching("GET", "b") is None
        assert listener("SSUBSCRIBE", "b") == [b"ssubscribe", b"b", 1]
        assert listener("SSUBSCRIBE", "c") == [b"ssubscribe", b"c", 2]
        groups.assign("3300", to="2")
        assert [watcher("MULTI"), watcher("PING"), watcher("EXEC")] == [b"OK", b"QUEUED", None]
        assert caching.read() == [b"invalidate", [b"b"]]
        assert listener.read() == [b"sunsubscribe", b"b", 1]


def test_calls_wait_while_their_slot_leaves(groups: Groups) -> None:
    """A writer that repeats its call where it is sent sees a pause, and no error."""
    first = groups.leader(1)
    ports = {node.port: Raw(node.port) for node in groups.nodes}
    at, ended, errors = first.port, False, list[str]()

    def write() -> None:
        nonlocal at
        while not ended:
            for _ in range(5):
                reply = ports[at]("SET", "b", "1")
                if reply == b"OK" or not str(reply).startswith("MOVED"):
                    break
                at = int(str(reply).rpartition(":")[2])
            if reply != b"OK":
                errors.append(str(reply))
                return
            ports[at]("DEL", "b")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for number in range(6):
        source, target = ("1", "2") if number % 2 == 0 else ("2", "1")
        wait_until(
            lambda source=source, target=target: (
                groups.leader(source).say("TCLUSTER", "ASSIGN", "3300", "TO", target) == b"OK"
            ),  # type: ignore[misc]
            "a moment without the key",
        )
        groups.agree()
    ended = True
    writer.join(20)
    assert not errors
    for raw in ports.values():
        raw.close()


def test_a_group_leaves_and_another_one_joins(servers: Cluster) -> None:
    groups = Groups(servers)
    second = groups.leader(2)
    groups.assign("8192-16383", to="1", at=2)
    first = groups.leader(1)
    assert first.say("TCLUSTER", "REMOVE", "2") == (
        "ERR group 2 is running, and would join the cluster again: stop its members first"
    )
    second.stop()
    assert first.say("TCLUSTER", "REMOVE", "2") == b"OK"
    assert list(groups.agree(first)["groups"]) == ["1"]
    assert first.say("SET", "a", "1") == b"OK"
    third = groups.add().nodes[0]
    groups.assign("0-99", to="3")
    assert [port for _, _, port in slot_ranges(first)] == [third.port, first.port]


def test_a_lost_map_is_restored(servers: Cluster) -> None:
    groups = Groups(servers)
    first, second = groups.leader(1), groups.leader(2)
    before = groups.agree()
    first("SET", "b", "1")
    lost = servers.top / "coordinator" / "keys"
    found = [path for path in lost.iterdir() if "clusters" in path.name]
    assert len(found) == 1
    found[0].rename(servers.top / "lost")
    wait_until(lambda: "has no map" in cluster_status(first)["problem"], "the problem")
    assert first.say("GET", "b") == b"1"  # it still owns the slot
    assert "has no map" in first.say("TCLUSTER", "ASSIGN", "0", "TO", "2")
    second.kill()
    second.start()
    wait_until(lambda: "has no map" in cluster_status(second)["problem"], "the problem")
    assert second.say("GET", "a") == "CLUSTERDOWN The cluster is down"
    assert first.say("TCLUSTER", "RESTORE") == b"OK"
    wait_until(lambda: second.say("SET", "a", "1") == b"OK", "the owner serves again")
    after = groups.agree()
    assert after["slots"] == before["slots"]
    saved = mapfile.load(second.directory)
    assert saved is not None
    assert saved.version == after["version"] > before["version"]


def test_without_a_map() -> None:
    with cluster() as servers:
        node: Node = servers.node(cluster_enabled="yes")
        plain = servers.node()
        assert node.say("TCLUSTER", "MAP") == (
            "ERR this server shares the slots with no other group: it has no coordinator (group, coordinator)"
        )
        assert plain.say("TCLUSTER", "STATUS") == "ERR This instance has cluster support disabled"
