"""Two server groups share the slots: redirections, and the map at each member."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from redis.cluster import ClusterNode, RedisCluster

from commands.slots import SLOTS, slot_of
from respserver.slotmaps import mapfile
from tests.replication.cluster import Cluster, Node, wait_until
from tests.replication.clusters import Groups, cluster_status, slot_ranges
from tests.wire.rawclient import Raw
from tidelog.testing import ServerError

# "b" has slot 3300, of group 1; "a" has slot 15495, of group 2


@pytest.fixture
def pair(shared: Groups) -> tuple[Node, Node]:
    """The leaders of both groups, without keys."""
    leaders = shared.leader(1), shared.leader(2)
    for node in leaders:
        node("FLUSHALL")
    return leaders


def test_calls_are_redirected_to_the_owner(pair: tuple[Node, Node]) -> None:
    assert (slot_of(b"b"), slot_of(b"a")) == (3300, 15495)
    first, second = pair
    moved = f"MOVED 15495 127.0.0.1:{second.port}"
    with Raw(first.port) as one, Raw(second.port) as two:
        assert one("SET", "b", "1") == b"OK"
        assert two("SET", "a", "2") == b"OK"
        for words in (
            ["GET", "a"], ["SET", "a", "x"], ["XADD", "a", "*", "f", "v"], ["XREAD", "STREAMS", "a", "0"],
            ["TAPPEND", "a", "f", "v"], ["DEL", "a"], ["EXISTS", "a", "{a}2"], ["MSET", "a", "1", "{a}2", "2"],
            ["OBJECT", "ENCODING", "a"], ["SPUBLISH", "a", "x"], ["SSUBSCRIBE", "a"], ["WATCH", "a"],
            ["RENAME", "a", "{a}2"], ["TSTAGE", "{a}s", "1000", "a", "FIELDS", "1", "f", "VALUES", "v"],
        ):  # fmt: skip
            assert one(*words) == moved, words
        assert two("MGET", "b", "{b}2") == f"MOVED 3300 127.0.0.1:{first.port}"
        assert one("MGET", "a", "b") == "CROSSSLOT Keys in request don't hash to the same slot"
        assert [one("GET", "b"), two("GET", "a")] == [b"1", b"2"]
        assert [one("DBSIZE"), two("DBSIZE"), one("PING")] == [1, 1, b"PONG"]


@pytest.mark.parametrize("words", [("GET", "{}"), ("SET", "{}", "v"), ("TAPPEND", "{}", "f", "v"), ("DEL", "{}")])
def test_no_call_of_a_pipeline_reaches_the_wrong_group(words: tuple[str, ...], pair: tuple[Node, Node]) -> None:
    """Calls that arrive together are handled together, but not the ones of another group."""
    first, second = pair
    moved = f"MOVED 15495 127.0.0.1:{second.port}"

    def calls(*keys: str) -> list[tuple[bytes | str | int, ...]]:
        return [tuple(word.format(key) for word in words) for key in keys]

    with Raw(first.port) as one:
        for keys in (["b"] * 3 + ["a"] + ["b"] * 3, ["a"] * 5, ["{b}1", "{b}2", "a", "a", "{b}3"], ["a", "b"]):
            replies = one.pipeline(*calls(*keys))
            assert [reply == moved for reply in replies] == [key == "a" for key in keys]
        assert one("EXISTS", "b") in (0, 1)
    assert first("DBSIZE") == len([key for key in first("KEYS", "*") if slot_of(key) < SLOTS // 2])
    assert second("DBSIZE") == 0


def test_transactions_run_at_one_group(pair: tuple[Node, Node]) -> None:
    first, second = pair
    moved = f"MOVED 15495 127.0.0.1:{second.port}"
    with Raw(first.port) as one:
        assert [one("MULTI"), one("GET", "a"), one("EXEC")] == [
            b"OK", moved, "EXECABORT Transaction discarded because of previous errors.",
        ]  # fmt: skip
        assert [one("MULTI"), one("SET", "b", "1"), one("EXEC")] == [b"OK", b"QUEUED", [b"OK"]]
        assert one("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert [one("MULTI"), one("SET", "b", "1"), one("SET", "c", "2"), one("EXEC")] == [
            b"OK", b"QUEUED", b"QUEUED", [b"OK", b"OK"],
        ]  # fmt: skip
        assert one("MGET", "b", "c") == [b"1", b"2"]  # two slots of one group
        assert one("MGET", "b", "a") == moved
        assert one("MSETEX", 2, "c", 1, "a", 1) == moved
        assert one("MGET", "b", "c") == [b"1", b"2"]
        assert one("XREAD", "STREAMS", "x{b}", "x{a}", "0", "0") == moved
        assert one("XREAD", "STREAMS", "x{b}", "x{c}", "0", "0") is None


def test_all_members_list_both_groups(shared: Groups, pair: tuple[Node, Node]) -> None:
    first, second = pair
    ids = [node.say("CLUSTER", "MYID") for node in pair]
    for node in pair:
        assert slot_ranges(node) == [(0, 8191, first.port), (8192, 16383, second.port)]
        lines = {line.split()[0]: line.split()[1:] for line in node.say("CLUSTER", "NODES").decode().splitlines()}
        assert [lines[each.decode()][-1] for each in ids] == ["0-8191", "8192-16383"]
        assert [lines[each.decode()][1].removeprefix("myself,") for each in ids] == ["master", "master"]
        assert [shard[1] for shard in sorted(node.say("CLUSTER", "SHARDS"), key=str)] in (
            [[0, 8191], [8192, 16383]], [[8192, 16383], [0, 8191]],
        )  # fmt: skip
        facts = node.say("CLUSTER", "INFO").decode()
        for line in ("cluster_state:ok", "cluster_slots_assigned:16384", "cluster_known_nodes:2", "cluster_size:2"):
            assert line in facts
        assert node.say("CLUSTER", "REPLICAS", ids[0]) == []
    assert first.say("CLUSTER", "MYSHARDID") != second.say("CLUSTER", "MYSHARDID")
    document = shared.agree()
    assert document["slots"] == [[0, 8191, "1"], [8192, 16383, "2"]]
    assert document["groups"]["2"]["members"]["2a"]["port"] == second.port
    assert json.loads(first.say("TCLUSTER", "MAP")) == document
    saved = mapfile.load(first.directory)
    assert saved is not None
    assert saved.document() == document
    assert cluster_status(second)["serves"] == ["8192-16383"]


def test_shard_messages_belong_to_a_group(pair: tuple[Node, Node]) -> None:
    second = pair[1]
    with Raw(second.port) as listener:
        assert listener("SSUBSCRIBE", "a") == [b"ssubscribe", b"a", 1]
        assert second("SPUBLISH", "a", "x") == 1
        assert listener.read() == [b"smessage", b"a", b"x"]


def test_redis_py(pair: tuple[Node, Node]) -> None:
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", pair[0].port)]) as client:
        for number in range(50):
            assert client.xadd(f"stream:{number}", {"n": str(number)})
        assert sum(len(client.xrange(f"stream:{number}")) for number in range(50)) == 50
        assert client.mset_nonatomic({f"k{number}": number for number in range(20)})
        assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == 70
        pipe = client.pipeline()
        for number in range(20):
            pipe.get(f"k{number}")
        assert pipe.execute() == [str(number).encode() for number in range(20)]
    assert all(node("DBSIZE") > 10 for node in pair)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-c", "-p", "{}", "SET", "a", "redirected"], "OK"),
        (["--cluster", "check", "127.0.0.1:{}"], "[OK] All 16384 slots covered."),
        (["--cluster", "info", "127.0.0.1:{}"], "keys in 2 masters."),
    ],
)
def test_redis_cli(words: list[str], expected: str, pair: tuple[Node, Node]) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli here")
    ran = subprocess.run(
        ["redis-cli", *[word.format(pair[0].port) for word in words]], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert expected in ran.stdout, ran.stdout + ran.stderr


def test_redis_benchmark(pair: tuple[Node, Node]) -> None:
    if shutil.which("redis-benchmark") is None:
        pytest.skip("no redis-benchmark here")
    words = ["--cluster", "-p", str(pair[0].port), "-q", "-n", "500", "-t", "set", "-r", "100"]
    ran = subprocess.run(["redis-benchmark", *words], capture_output=True, text=True, check=False, timeout=60)
    assert "requests per second" in ran.stdout, ran.stdout + ran.stderr
    assert all(node("DBSIZE") > 10 for node in pair)


# -- failovers and restarts ------------------------------------------------------------------------------------------
def test_the_map_follows_a_failover(servers: Cluster) -> None:
    groups = Groups(servers, members=2, min_in_sync=2)
    document = groups.agree()
    first, second = groups.leader(1), groups.leader(2)
    assert set(document["groups"]["1"]["members"]) == {"1a", "1b"}
    other = groups.groups[0].others(first)[0]
    with Raw(other.port) as c:
        assert c("GET", "b") == f"MOVED 3300 127.0.0.1:{first.port}"
        assert c("GET", "a") == f"MOVED 15495 127.0.0.1:{second.port}"
        c("READONLY")
        assert c("GET", "b") is None
        assert c("GET", "a") == f"MOVED 15495 127.0.0.1:{second.port}"
    first("SET", "b", "1")
    first("FAILOVER")
    wait_until(lambda: groups.groups[0].leader(other) is other, "the other member leads")
    wait_until(lambda: second.say("GET", "b") == f"MOVED 3300 127.0.0.1:{other.port}", "a hint to the new leader")
    wait_until(lambda: other.say("GET", "b") == b"1", "the new leader serves")
    wait_until(lambda: [port for _, _, port in slot_ranges(second)] == [other.port, second.port], "the new leader")


def test_the_map_survives_a_restart_of_all(servers: Cluster) -> None:
    groups = Groups(servers)
    before = groups.agree()
    first, second = groups.leader(1), groups.leader(2)
    for node in (first, second):
        node.kill()
    for node in (first, second):
        node.start()
    groups.leader(1)
    groups.leader(2)
    after = groups.agree()
    assert after["slots"] == before["slots"]
    assert after["cluster_id"] == before["cluster_id"]
    assert after["version"] >= before["version"] + 2  # each leader has written its epoch


def test_a_member_with_a_damaged_copy_of_the_map(servers: Cluster) -> None:
    """It does not start, and names the remedy, which loses nothing."""
    groups = Groups(servers)
    before = groups.agree()
    first = groups.leader(1)
    first("SET", "b", "1")
    first.kill()
    saved = first.directory / "map"
    saved.write_bytes(saved.read_bytes()[:-600])
    with pytest.raises(ServerError, match="map is damaged: delete it, and this member reads the map from the coordin"):
        first.start()
    saved.unlink()
    (first.directory / "map.new").write_bytes(b"torn")  # left by a crash
    first.start()
    wait_until(lambda: first.say("GET", "b") == b"1", "the owner serves again")
    after = groups.agree()
    assert (after["cluster_id"], after["slots"]) == (before["cluster_id"], before["slots"])
    assert saved.exists()


def test_a_member_without_coordinator_redirects_by_its_copy(servers: Cluster) -> None:
    groups = Groups(servers)
    first, second = groups.leader(1), groups.leader(2)
    first.kill()
    (servers.top / "coordinator").rename(servers.top / "away")
    first.start()
    with Raw(first.port) as c:
        assert c("GET", "a") == f"MOVED 15495 127.0.0.1:{second.port}"
        assert c("GET", "b") == "CLUSTERDOWN The cluster is down"
        assert b"cluster_state:fail" in c("CLUSTER", "INFO")
        assert cluster_status(first)["serves"] == []
    (servers.top / "away").rename(servers.top / "coordinator")
    wait_until(lambda: first.say("SET", "b", "1") == b"OK", "the owner serves again")
