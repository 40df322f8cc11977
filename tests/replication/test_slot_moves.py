"""TCLUSTER MOVE: slots with keys move from one group to another, while clients use them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.clusters import Groups, cluster_status
from tests.wire.rawclient import Raw


@pytest.fixture
def groups(shared: Groups) -> Iterator[Groups]:
    """Two groups without keys, with half of the slots each, now and after the test."""
    yield shared
    for at, first, last, to in (("1", 8192, 16383, "2"), ("2", 0, 8191, "1")):
        if any(low <= last and high >= first and owner == at for low, high, owner in shared.agree()["slots"]):
            owned = [
                f"{max(low, first)}-{min(high, last)}"
                for low, high, owner in shared.agree()["slots"]
                if owner == at and low <= last and high >= first
            ]
            shared.move(*owned, to=to, at=at)
    for name in "12":
        shared.leader(name)("FLUSHALL")


def fill(node: Node) -> None:
    """Keys of all kinds, with the hash tag {a}, whose slot is 15495."""
    calls: list[tuple[Any, ...]] = [
        ("SET", "{a}s", "text", "PX", "600000"), ("SET", "{a}t", "1"), ("INCR", "{a}t"),
        *(("XADD", "{a}x", f"{number}-1", "n", number) for number in range(1, 1500)),
        ("XDEL", "{a}x", "700-1", "701-1", "1499-1"), ("XTRIM", "{a}x", "MINID", "100"),
        ("XGROUP", "CREATE", "{a}x", "g", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "10", "STREAMS", "{a}x", ">"),
        ("XACK", "{a}x", "g", "100-1"), ("XADD", "{a}i", "IDMP", "p", "1", "*", "f", "v"),
        ("TDELAY", "{a}x", "IN", "600000", "ID", "token", "f", "later"),
        ("TDELAY", "{a}x", "AT", "9999999999999", "f", "v"),
        ("TREAD", "{a}x", "0", "3", "GROUP", "q", "600000", "RETRY", "600000", "900000"),
        ("TCFG", "{a}r", "RETAIN", "COUNT", "5", "EXACT"),
        ("TCFG", "{a}x", "TIER", "BYTES", "1000"),
        ("TSTAGE", "{a}stage", "600000", "{a}y", "FIELDS", "1", "f", "VALUES", "staged"),
        ("TSTAGE", "{a}other", "600000", "{a}y", "FIELDS", "1", "f", "VALUES", "staged"),
        ("TPUBLISH", "{a}fence", "7", "{a}other"),
    ]  # fmt: skip
    with Raw(node.port) as raw:
        for call, reply in zip(calls, raw.pipeline(*calls), strict=True):
            assert not isinstance(reply, Exception), (call, reply)


def seen(node: Node) -> list[Any]:
    """What a client can see of these keys."""
    with Raw(node.port) as raw:
        found = [
            raw(*words.split())
            for words in (
                "GET {a}s", "GET {a}t", "XRANGE {a}x - +", "XINFO STREAM {a}x", "XPENDING {a}x g - + 100",
                "XINFO GROUPS {a}x", "XINFO STREAM {a}i", "TPENDING {a}x q", "TDELAY {a}x LIST", "TFENCE {a}fence",
                "TCFG {a}r", "TCFG {a}x",
            )
        ]  # fmt: skip
    found[4] = [[each[0], each[1], each[3]] for each in found[4]]  # without the idle time
    return found


def test_everything_that_a_key_has_moves(groups: Groups) -> None:
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    before = seen(two)
    groups.move("15495", to="1", at=2)
    assert seen(one) == before
    assert two.say("GET", "{a}s") == f"MOVED 15495 127.0.0.1:{one.port}"
    assert two.say("DBSIZE") == 0
    assert one.say("TPUBLISH", "{a}fence", "8", "{a}stage") == [b"published", 1]
    assert one.say("XLEN", "{a}y") == 2
    assert 0 < one.say("PTTL", "{a}s") <= 600000


def in_background(call: Callable[[], object]) -> Callable[[], object]:
    """Run a call in a thread. Return a function that waits for its result."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - the connection may be lost
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> object:
        thread.join(60)
        return found[0]

    return result


def moving(node: Node) -> dict[str, Any] | None:
    found: dict[str, Any] | None = cluster_status(node)["move"]
    return found


class Load:
    """Writers that append numbers with ordinary cluster clients, each to its own keys in all slots."""

    def __init__(self, groups: Groups, writers: int = 2, keys: int = 20) -> None:
        self._groups = groups
        self._over = threading.Event()
        self.acknowledged: dict[str, list[int]] = {}
        self._threads = [
            threading.Thread(target=self._write, args=(at, [f"k{at}-{key}" for key in range(keys)]), daemon=True)
            for at in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    def client(self) -> RedisCluster:
        host, port = self._groups.startup()[0]
        return RedisCluster(
            host=host, port=port, retry=Retry(ExponentialBackoff(cap=0.2, base=0.01), 200), socket_timeout=2
        )

    def _write(self, at: int, keys: list[str]) -> None:
        client, number = self.client(), 0
        while not self._over.is_set():
            key = keys[number % len(keys)]
            client.execute_command("XADD", key, "IDMP", f"w{at}", str(number), "*", "n", str(number))
            self.acknowledged.setdefault(key, []).append(number)
            number += 1
        client.close()

    def written(self, more: int) -> None:
        """Wait until more entries are acknowledged."""
        until = self._count() + more
        wait_until(lambda: self._count() >= until, f"{more} more appends")

    def _count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def check(self) -> None:
        """End the load. Each acknowledged entry is there exactly once."""
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        client = self.client()
        for key, numbers in self.acknowledged.items():
            rows: list[Any] = client.xrange(key) or []
            found = [int(fields[b"n"]) for _, fields in rows]
            assert found == numbers, key
        client.close()


def test_clients_write_while_slots_move_to_and_fro(groups: Groups) -> None:
    load = Load(groups)
    load.written(200)
    for first, last, at, to in ((0, 8191, "1", "2"), (0, 16383, "2", "1"), (4000, 12000, "1", "2")):
        groups.move(f"{first}-{last}", to=to, at=at)
        load.written(50)
    load.check()
    total = sum(map(len, load.acknowledged.values()))
    assert sum(int(groups.leader(name).say("DBSIZE")) for name in "12") == len(load.acknowledged)
    assert total > 350


def test_a_move_is_aborted_and_leaves_nothing(groups: Groups) -> None:
    one, two = groups.leader(1), groups.leader(2)
    with Raw(one.port) as raw:
        raw.pipeline(*(("XADD", f"{{b}}{number % 50}", "*", "n", number) for number in range(2000)))
        # a stage that can't be divided: the slots can't leave
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert raw("TSTAGE", "{b}stage", "600000", "{c}y", "FIELDS", "1", "f", "VALUES", "v") == 1
    result = in_background(lambda: one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    wait_until(lambda: "publish or drop it" in str((moving(one) or {}).get("problem")), "a move that waits")
    state = moving(one)
    assert state is not None
    assert (state["copied"], state["keys"], state["state"]) == (50, 50, "copying")
    wait_until(lambda: two.info("keyspace").get("db0", {}).get("keys") == 50, "the last copies arrive")
    assert two.say("DBSIZE") == 0
    assert two.say("KEYS", "*") == []
    assert two.say("SCAN", "0", "COUNT", "1000")[1] == []
    assert two.say("RANDOMKEY") is None
    assert str(two.say("FLUSHALL")).startswith("TRYAGAIN slots are moving")
    assert str(one.say("TCLUSTER", "MOVE", "3301", "TO", "2")).startswith("ERR other slots of this group")
    assert str(two.say("XLEN", "{b}1")).startswith("MOVED 3300")
    assert one.say("TCLUSTER", "ABORT") == b"OK"
    assert str(result()).startswith("ERR the move was aborted")
    wait_until(lambda: not two.info("keyspace"), "nothing is left")
    assert one.say("XLEN", "{b}1") == 40
    assert str(one.say("TCLUSTER", "ABORT")).startswith("ERR no slots of this group are moving")
    one.say("TDROP", "{b}stage")
    groups.move("3300", to="2")
    assert two.say("XLEN", "{b}1") == 40


def test_refused_moves(groups: Groups) -> None:
    one, two = groups.leader(1), groups.leader(2)
    with Raw(one.port) as raw:
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert raw("XADD", "{b}k", "*", "f", "v")
        options = ("GROUP", "g", "60000", "RETRY", "60000", "90000", "DEADLETTER", "{c}dead")
        assert len(raw("TREAD", "{b}k", "0", "9", *options)) == 1
    for words, error in (
        (("3300", "TO", "9"), "the cluster has no group 9"),
        (("16000", "TO", "1"), "group 2 is the owner, and only its leader can assign its slots: send the command to"),
        (("3300", "TO", "2"), "a group of '{b}k' has its dead letters in '{c}dead', whose slot does not move"),
        (("3300-3299", "TO", "2"), "is not a range of slots"),
    ):
        assert error in str(one.say("TCLUSTER", "MOVE", *words)), words
    wait_until(lambda: not two.info("keyspace"), "nothing is left")
    assert groups.agree()["moves"] == []
    assert one.say("TCLUSTER", "MOVE", "3300", "TO", "1") == b"OK"


def test_blocked_readers_are_redirected(groups: Groups) -> None:
    one, two = groups.leader(1), groups.leader(2)
    one.say("XADD", "{b}k", "1-1", "f", "v")
    one.say("XGROUP", "CREATE", "{b}k", "g", "$")
    with Raw(one.port) as plain, Raw(one.port) as grouped:
        plain.send("XREAD", "BLOCK", "0", "STREAMS", "{b}k", "$")
        grouped.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "{b}k", ">")
        wait_until(lambda: int(one.info("clients")["blocked_clients"]) >= 2, "blocked readers")
        groups.move("3300", to="2")
        assert plain.read() == grouped.read() == f"MOVED 3300 127.0.0.1:{two.port}"
    assert two.say("XRANGE", "{b}k", "-", "+") == [[b"1-1", [b"f", b"v"]]]


@pytest.fixture
def pairs(servers: Cluster) -> Groups:
    """Two groups of two members."""
    return Groups(servers, members=2, move_pause=5000)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_leader_is_suspended_during_a_move(servers: Cluster, victim: str) -> None:
    """For longer than its lease: the other member of its group leads, and what the old one does later has no effect."""
    groups = Groups(servers, members=2, move_pause=5000, group_lease=2000)
    load = Load(groups)
    load.written(100)
    source = groups.leader(1)
    with Raw(source.port) as raw:
        raw.pipeline(*(("XADD", "{b}large", "*", "n", number, "text", "x" * 1000) for number in range(20_000)))
    result = in_background(lambda: source.say("TCLUSTER", "MOVE", "0-8191", "TO", "2"))
    wait_until(lambda: moving(source) is not None, "a move")
    number = 1 if victim == "source" else 2
    frozen = groups.leader(number)
    frozen.freeze()
    group = groups.groups[number - 1]
    wait_until(lambda: group.leader(*group.others(frozen)), "another leader")
    load.written(20)
    frozen.thaw()
    result()
    wait_until(lambda: not groups.agree()["moves"], "the end of the move")
    if groups.agree()["slots"][0][2] == "1":
        groups.move("0-8191", to="2")
    load.written(50)
    load.check()
    with Raw(groups.leader(2).port) as raw:
        assert raw("XLEN", "{b}large") == 20_000


@pytest.mark.long(short=True)
@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_leader_is_killed_during_a_move(pairs: Groups, victim: str) -> None:
    groups = pairs
    load = Load(groups)
    load.written(100)
    with Raw(groups.leader(1).port) as raw:
        for number in range(30_000):  # so that the copy takes a while
            raw.send("XADD", "{b}large", "*", "n", number, "text", "x" * 100)
            if number % 1000 == 999:
                assert [raw.read() for _ in range(1000)]
    source = groups.leader(1)
    result = in_background(lambda: source.say("TCLUSTER", "MOVE", "0-8191", "TO", "2"))
    wait_until(lambda: moving(source) is not None, "a move")
    killed = groups.leader(1 if victim == "source" else 2)
    killed.kill()
    if victim == "source":
        result()
        killed.start()
        wait_until(lambda: not groups.agree()["moves"], "the end of the move")
        if groups.agree()["slots"][0][2] == "1":
            groups.move("0-8191", to="2")
    else:
        assert result() == b"OK"
        killed.start()
    load.written(50)
    load.check()
    with Raw(groups.leader(2).port) as raw:
        assert raw("XLEN", "{b}large") == 30_000


def test_a_group_that_is_not_in_sync_gets_no_slots(servers: Cluster) -> None:
    groups = Groups(servers, divide=False)
    groups.leader(2)("CONFIG", "SET", "min-in-sync", "2")
    error = str(groups.leader(1).say("TCLUSTER", "MOVE", "0", "TO", "2"))
    assert "group 2 is not in sync: fewer than min-in-sync members are: start its other members" in error
    assert groups.agree()["moves"] == []


def test_a_target_that_is_suspended_does_not_delay_messages(groups: Groups) -> None:
    """The time at which a message falls due stays the same: the other group has served its clients meanwhile."""
    one, two = groups.leader(1), groups.leader(2)
    with Raw(one.port) as raw:
        assert raw("XADD", "{b}k", "1-1", "f", "v")
        assert len(raw("TREAD", "{b}k", "0", "9", "GROUP", "g", "0", "RETRY", "600000", "0")) == 1
        ((_, _, _, due, _),) = raw("TPENDING", "{b}k", "g", "-", "+", "9")
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        # a stage that can't be divided: the slots can't leave
        assert raw("TSTAGE", "{b}stage", "600000", "{c}y", "FIELDS", "1", "f", "VALUES", "v") == 1
    result = in_background(lambda: one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    wait_until(lambda: "publish or drop it" in str((moving(one) or {}).get("problem")), "a move that waits")
    two.freeze()
    frozen = time.monotonic()
    wait_until(lambda: time.monotonic() - frozen > 2.5, "a long suspension")
    two.thaw()
    one.say("TDROP", "{b}stage")
    assert result() == b"OK"
    ((_, deliveries, _, now, _),) = two.say("TPENDING", "{b}k", "g", "-", "+", "9")
    assert deliveries == 1
    assert due - 1500 < now < due + 1500


def test_a_suspended_target(servers: Cluster) -> None:
    groups = Groups(servers, group_lease=2000)
    load = Load(groups)
    load.written(100)
    one, two = groups.leader(1), groups.leader(2)
    two.freeze()
    result = in_background(lambda: one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    wait_until(lambda: moving(one) is not None, "a move")
    assert one.say("SET", "{b}", "1") == b"OK"
    two.thaw()
    assert result() == b"OK"
    load.written(20)
    load.check()
    assert two.say("GET", "{b}") == b"1"
