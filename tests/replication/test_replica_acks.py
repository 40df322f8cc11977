"""replica-acks: no reply shows anything that the replicas do not have on disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.replication.test_passwords_and_tls import Certificates
from tests.wire.rawclient import Raw, pack


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
        raw.send("PING")  # in a tick of its own
        assert other("PING") == b"PONG"
        assert raw.nothing_yet()
        for number in range(1, 200):
            raw.send("INCR", "k")
            raw.send("PING", number)  # stays behind the others
        other.send("SET", "last", "1")
        wait_until(lambda: withheld(leader) == 2, "all are withheld")
        assert raw.nothing_yet()
        replica.thaw()
        assert [raw.read() for _ in range(2)] == [b"OK", b"PONG"]
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


def test_suppressed_replies(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as off, Raw(leader.port) as skip:
        off.send("CLIENT", "REPLY", "OFF")
        off.send("SET", "k", "v")
        skip.send("CLIENT", "REPLY", "SKIP")
        skip.send("SET", "k", "w")
        skip.send("GET", "k")
        wait_until(lambda: withheld(leader) == 1, "only one client has a reply to wait for")
        off.send("SET", "k", "x")
        off.send("CLIENT", "REPLY", "ON")
        wait_until(lambda: leader.offset > int(leader.info()["replica_acks_offset"]), "the writes are logged")
        replica.thaw()
        assert skip.read() == b"w"
        assert off.read() == b"OK"
        assert off("GET", "k") == b"x"


def test_wait_beside_it(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as raw, Raw(leader.port) as impatient:
        raw.send("SET", "k", "v")
        raw.send("WAIT", 1, 0)
        impatient.send("SET", "k", "w")
        impatient.send("WAITAOF", 1, 1, 1)
        wait_until(lambda: withheld(leader) == 2, "both wait")
        wait_until(lambda: leader.info("clients")["blocked_clients"] == 1, "the second WAIT has timed out")
        assert impatient.nothing_yet()
        replica.thaw()
        assert [raw.read() for _ in range(2)] == [b"OK", 1]
        assert impatient.read() == b"OK"
        assert impatient.read() == [1, 0]


def test_what_sentinels_and_operators_send_is_answered(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.freeze()
    with Raw(leader.port) as writer, Raw(leader.port) as raw:
        writer.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        assert raw("PING") == b"PONG"
        assert b"role:master" in raw("INFO")
        assert raw("PUBLISH", "__sentinel__:hello", "x") == 0
        assert raw("ROLE")[0] == b"master"
        assert b"cmd=" in raw("CLIENT", "LIST")
        assert raw("CONFIG", "GET", "replica-acks") == [b"replica-acks", b"1"]
        assert "wrong number" in raw("GET")
        assert raw("MULTI") == b"OK"
        assert raw("CLIENT", "SETNAME", "x") == b"QUEUED"
        assert raw("CLIENT", "KILL", "TYPE", "pubsub") == b"QUEUED"
        assert raw("EXEC") == [b"OK", 0]
        assert withheld(leader) == 1
        raw.pipeline(("MULTI",), ("PING",), ("EXISTS", "k"))
        raw.send("EXEC")
        wait_until(lambda: withheld(leader) == 2, "a transaction that shows data is withheld")
        replica.thaw()
        assert raw.read() == [b"PONG", 1]


def test_a_promotion_is_answered(own: tuple[Node, Node]) -> None:
    """Sentinel would otherwise give up, and never send the other replicas to the new leader."""
    leader, replica = own
    replica("CONFIG", "SET", "replica-acks", 1)
    leader.kill()
    with Raw(replica.port) as sentinel, Raw(replica.port) as reader:
        sentinel.pipeline(("MULTI",), ("REPLICAOF", "NO", "ONE"), ("CLIENT", "KILL", "TYPE", "pubsub"))
        assert sentinel("EXEC") == [b"OK", 0]
        assert b"role:master" in sentinel("INFO", "replication")
        reader.send("GET", "before")
        wait_until(lambda: withheld(replica) == 1, "what the replicas have is not known")
        assert "NOREPLICAS" in replica.say("SET", "k", "v")
        leader.config["replicaof"] = f"127.0.0.1 {replica.port}"
        leader.start()
        assert reader.read() == b"1"


def test_a_shutdown_waits_and_then_answers_nothing(servers: Cluster) -> None:
    """The outcome of a write whose reply was withheld is unknown, so no reply is sent, but it is logged."""
    leader, replica = servers.pair(shutdown_timeout=1, repl_timeout=60)
    leader("CONFIG", "SET", "replica-acks", 1)
    assert leader("SET", "before", "1")
    replica.freeze()
    with Raw(leader.port) as writer, Raw(leader.port) as reader:
        writer.send("SET", "k", "v")
        reader.send("GET", "k")
        wait_until(lambda: withheld(leader) == 2, "the replies are withheld")
        leader.stop()
        for client in (writer, reader):
            with pytest.raises((EOFError, ConnectionError)):
                client.read()
    leader.start()
    assert leader("GET", "k") == b"v"


def test_a_shutdown_answers_what_replicas_confirm_in_time(own: tuple[Node, Node]) -> None:
    leader, replica = own
    replica.freeze()
    with Raw(leader.port) as writer:
        writer.send("SET", "k", "v")
        wait_until(lambda: withheld(leader) == 1, "the reply is withheld")
        leader.redis.connection_pool.disconnect()
        os.kill(leader.pid, signal.SIGTERM)
        wait_until(lambda: leader.logged("scheduling shutdown"), "it stops")
        replica.thaw()
        assert writer.read() == b"OK"


def test_tls(servers: Cluster, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    settings = certificates.settings() | {"tls_auth_clients": "no"}
    leader, replica = servers.node(**settings), servers.node(**certificates.settings(), start=False)
    replica.config["replicaof"] = f"127.0.0.1 {settings['tls_port']}"
    replica.start()
    wait_until(lambda: in_sync(leader, replica), "in sync")
    leader("CONFIG", "SET", "replica-acks", 1)
    secure = redis.Redis(port=int(settings["tls_port"]), ssl=True, ssl_ca_certs=certificates.ca, socket_timeout=10)
    with secure, ThreadPoolExecutor(1) as pool:
        assert secure.set("big", "x" * 200_000)
        replica.freeze()
        with secure.pipeline(transaction=False) as pipe:
            for words in (("SET", "k", "v"), ("GET", "big"), ("GET", "k")):
                pipe.execute_command(*words)
            replies = pool.submit(pipe.execute)
            wait_until(lambda: withheld(leader) == 1, "the replies are withheld")
            assert not replies.done()
            replica.thaw()
            assert replies.result() == [True, b"x" * 200_000, b"v"]


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
        greedy.sock.sendall(20 * pack("GET", "big"))
        wait_until(lambda: withheld(leader) == 3, "they are withheld")
        name = "addr={}:{} ".format(*greedy.sock.getsockname())

        def size() -> int:
            line = next(line for line in leader.say("CLIENT", "LIST").decode().splitlines() if name in line)
            return int(line.split(" withheld=")[1].split()[0])

        wait_until(lambda: size() > 1_000_000, "as many commands have run as the output may hold")
        assert size() < 2_000_000  # the commands behind it wait
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
    assert "needs a server group" in str(leader.say("CONFIG", "SET", "replica-acks", "insync"))
    assert "number of replicas" in str(leader.say("CONFIG", "SET", "replica-acks", "-1"))
