"""replica-acks: no reply shows anything that the replicas do not have on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.wire.rawclient import Raw


def confirming(servers: Cluster) -> tuple[Node, Node]:
    """A leader and its replica with appendfsync no, in sync, then replica-acks 1."""
    leader, replica = servers.pair(appendfsync="no", repl_timeout=60)
    leader("CONFIG", "SET", "replica-acks", 1)
    assert leader("SET", "before", "1")
    return leader, replica


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Node, Node]]:
    with cluster() as made:
        yield confirming(made)


@pytest.fixture
def pair(shared: tuple[Node, Node]) -> Iterator[tuple[Node, Node]]:
    leader, replica = shared
    yield shared
    replica.thaw()
    leader("CONFIG", "SET", "notify-keyspace-events", "", "client-output-buffer-limit", "normal 0 0 0")
    leader("CONFIG", "SET", "replica-acks", 1)
    leader("FLUSHALL")
    leader("SET", "before", "1")


@pytest.fixture
def own(servers: Cluster) -> tuple[Node, Node]:
    """For tests that end one of them, or change its role."""
    return confirming(servers)


def withheld(leader: Node) -> int:
    return int(leader.info()["withheld_clients"])


def test_a_write_waits_for_the_replica(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as writer, Raw(leader.port) as reader, Raw(leader.port) as idle:
        writer.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        reader.send("GET", "k")
        wait_until(lambda: withheld(leader) == 2, "a read that sees it is withheld, too")
        assert idle("PING") == b"PONG"  # can't show data
        assert writer.nothing_yet()
        assert reader.nothing_yet()
        replica.thaw()
        assert writer.read() == b"OK"
        assert reader.read() == b"v"
    assert withheld(leader) == 0


def test_reads_that_see_only_confirmed_data_are_answered(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as reader:
        assert reader("GET", "before") == b"1"
        assert reader("GET", "nothing") is None


def test_replies_stay_in_order(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as raw, Raw(leader.port) as other:
        raw.send("SET", "k", "0")
        wait_until(lambda: withheld(leader) == 1, "the first reply is withheld")
        for number in range(1, 200):
            raw.send("INCR", "k")
            raw.send("PING", number)  # stays behind the others
        other.send("SET", "last", "1")
        wait_until(lambda: withheld(leader) == 2, "all are withheld")
        assert raw.nothing_yet()
        replica.thaw()
        assert raw.read() == b"OK"
        for number in range(1, 200):
            assert raw.read() == number
            assert raw.read() == str(number).encode()
        assert other.read() == b"OK"


def test_everything_that_is_sent_waits(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    leader("CONFIG", "SET", "notify-keyspace-events", "KEA")
    with (
        Raw(leader.port) as events,
        Raw(leader.port) as blocked,
        Raw(leader.port) as messages,
        Raw(leader.port) as monitor,
        Raw(leader.port) as cache,
        Raw(leader.port) as writer,
    ):
        events("SUBSCRIBE", "__keyevent@0__:set")
        messages("SUBSCRIBE", "news")
        assert monitor("MONITOR") == b"OK"
        cache("HELLO", 3)
        cache("CLIENT", "TRACKING", "ON")
        cache("GET", "k")
        blocked.send("TREAD", "s", "", 1, "BLOCK", 0)
        wait_until(lambda: leader.info("clients")["blocked_clients"] == 1, "it waits")
        replica.freeze()
        writer.pipeline(("MULTI",), ("SET", "k", "v"), ("PUBLISH", "news", "n"), ("TAPPEND", "s", "f", "v"))
        writer.send("EXEC")
        wait_until(lambda: withheld(leader) == 6, "all six are withheld")
        for client in (events, blocked, messages, cache, writer):
            assert client.nothing_yet()
        replica.thaw()
        assert events.read()[2] == b"k"
        assert blocked.read()
        assert messages.read()[2] == b"n"
        assert cache.read()
        monitor.read()  # and the lines of the commands before
        assert writer.read()[0] == b"OK"


def test_too_few_replicas_refuse_writes(own: tuple[Node, Node]) -> None:
    leader, replica = own
    replica.kill()
    wait_until(lambda: "NOREPLICAS" in str(leader.say("SET", "k", "w")), "writes are refused")
    assert leader.say("GET", "before") == b"1"
    assert leader.say("GET", "k") is None  # it was refused before it ran
    assert leader.say("CONFIG", "SET", "replica-acks", 0) == b"OK"
    assert leader.say("SET", "k", "w") == b"OK"


def test_a_restarted_leader_confirms_again(own: tuple[Node, Node]) -> None:
    leader, replica = own
    leader.config["replica-acks"] = 1
    replica.freeze()
    leader.kill()
    leader.start()
    with Raw(leader.port) as raw:
        raw.send("GET", "before")
        wait_until(lambda: withheld(leader) == 1, "what replicas have is not known yet")
        replica.thaw()
        assert raw.read() == b"1"


def test_acknowledged_writes_are_on_the_replica(own: tuple[Node, Node]) -> None:
    leader, replica = own
    with Raw(leader.port) as raw:
        for number in range(60):
            raw("TAPPEND", "s", "n", number)
    facts = replica.info("persistence")
    assert facts["log_appendfsync"] == "always"  # whatever the replica's own setting is
    assert facts["log_syncs"] >= 60
    assert leader.info("persistence")["log_appendfsync"] == "always"
    leader.kill()
    replica.lead()
    assert replica("TLEN", "s") == 60


def test_the_policy_returns(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    leader("CONFIG", "SET", "replica-acks", 0)
    wait_until(lambda: replica.info("persistence")["log_appendfsync"] == "no", "the replica syncs as configured")
    assert leader.info("persistence")["log_appendfsync"] == "no"
    replica.freeze()
    assert leader.say("SET", "k", "v") == b"OK"


def test_zero_releases_what_is_withheld(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as raw:
        raw.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        leader("CONFIG", "SET", "replica-acks", 0)
        assert raw.read() == b"OK"


def test_a_demoted_leader_closes_the_clients_that_wait(own: tuple[Node, Node]) -> None:
    leader, replica = own
    replica.freeze()
    with Raw(leader.port) as writer, Raw(leader.port) as both:
        writer.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        both.send("MULTI")
        both.send("SET", "j", "v")
        both.send("REPLICAOF", "127.0.0.1", replica.port)
        both.send("EXEC")
        assert leader.say("REPLICAOF", "127.0.0.1", replica.port)
        for client in (writer, both):
            with pytest.raises((EOFError, ConnectionError)):
                assert all(client.read() in (b"OK", b"QUEUED") for _ in range(5))


def test_failover_answers_all_writers(servers: Cluster) -> None:
    leader, replica = servers.pair()
    for node in (leader, replica):
        node("CONFIG", "SET", "replica-acks", 1)
    with Raw(leader.port) as raw:
        for number in range(50):
            raw.send("SET", "k", number)
        leader("FAILOVER")
        replies = [raw.read() for _ in range(50)]  # the connection is not closed
    done = sum(answer == b"OK" for answer in replies)
    assert all("READONLY" in str(answer) for answer in replies[done:])  # writes that ran on neither
    wait_until(lambda: replica.role == "master" and in_sync(replica, leader), "the roles are exchanged")
    assert replica.say("GET", "k") == str(done - 1).encode() if done else True
    assert replica.say("SET", "k", "after") == b"OK"


def test_large_replies_and_limits(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    leader("SET", "big", b"x" * 300_000)
    for _ in range(40):
        leader("TAPPEND", "s", "f", b"y" * 50_000)
    replica.freeze()
    with Raw(leader.port) as writer, Raw(leader.port) as raw, Raw(leader.port) as greedy:
        writer.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        raw.send("TRANGE", "s", "-", "+")  # streamed
        raw.send("GET", "k")
        for _ in range(20):
            greedy.send("GET", "big")
        wait_until(lambda: withheld(leader) == 3, "they are withheld")
        line = next(line for line in leader.say("CLIENT", "LIST").decode().splitlines() if " withheld=1" in line)
        size = int(line.split(" withheld=")[1].split()[0])
        assert 1_000_000 < size < 2_000_000  # the commands behind it wait
        replica.thaw()
        assert len(raw.read()) == 40
        assert raw.read() == b"v"
        for _ in range(20):
            assert len(greedy.read()) == 300_000


def test_a_client_beyond_its_output_limit_is_closed(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    leader("SET", "big", b"x" * 300_000)
    leader("CONFIG", "SET", "client-output-buffer-limit", "normal 500000 0 0")
    replica.freeze()
    with Raw(leader.port) as raw:
        raw.send("SET", "k", "v")
        raw.send("GET", "big")
        raw.send("GET", "big")
        with pytest.raises((EOFError, ConnectionError)):
            raw.read()


def test_two_connections_of_one_replica_count_once(servers: Cluster) -> None:
    leader, first = servers.pair()
    second = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, first, second), "in sync")
    for node in (first, second):
        node("CONFIG", "SET", "replica-announce-port", 7)
        node("CLIENT", "KILL", "TYPE", "master")
    wait_until(lambda: sum(fact["port"] == 7 for fact in leader.info().values() if isinstance(fact, dict)) == 2, "both")
    leader("CONFIG", "SET", "replica-acks", 2)
    assert "NOREPLICAS" in str(leader.say("SET", "k", "v"))


def test_bad_values(servers: Cluster) -> None:
    leader = servers.node()
    assert "needs a coordinator" in str(leader.say("CONFIG", "SET", "replica-acks", "insync"))
    assert "number of replicas" in str(leader.say("CONFIG", "SET", "replica-acks", "-1"))
