"""Finding the leader by real Sentinels, and what replicas have before it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import Node
from tests.replication.sentinels import SERVICE, Watch, watched_pair
from tidelog import Published
from tidelog.client import calls
from tidelog.client.publish import NotReplicatedError, Publisher, ReplicaAcks, StagedRows, Stager
from tidelog.testing import free_port
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watch, Node, Node]]:
    with watched_pair(tmp_path_factory.mktemp("sentinel")) as found:
        yield found


def access_by(*ports: int, service: str = SERVICE, retries: int = 0) -> Access:
    return Access(
        sentinels=tuple(f"redis://127.0.0.1:{port}" for port in ports), service=service, retries=retries, retry_ms=100
    )


def test_the_leader_is_found_and_its_replicas(made: tuple[Watch, Node, Node]) -> None:
    watch, leader, replica = made
    servers = LeaderConnection(access_by(free_port(), *watch.ports), "test")
    assert servers.ask(calls.tlen("a")) == [0]
    assert servers.leader().url == f"redis://127.0.0.1:{leader.port}"
    assert servers.replicas() == (f"redis://127.0.0.1:{replica.port}",)
    servers.close()


def test_nobody_knows(made: tuple[Watch, Node, Node]) -> None:
    watch, leader, _ = made
    unknown = r"other of the Sentinels .* for 'other' \(.*: no service of this name\)"
    with pytest.raises(UnreachableError, match=unknown):
        LeaderConnection(access_by(*watch.ports, service="other"), "test").ask(calls.tlen("a"))
    with pytest.raises(ReplyError, match="unknown command 'SENTINEL'"):
        LeaderConnection(access_by(leader.port), "test").ask(calls.tlen("a"))


def test_what_replicas_have(made: tuple[Watch, Node, Node], caplog: pytest.LogCaptureFixture) -> None:
    watch, leader, replica = made
    access = access_by(*watch.ports)
    part = StagedRows(b"a", (b"n",), 1, b"$1\r\n1\r\n")

    def written(epoch: int, copies: ReplicaAcks) -> Published:
        stager = Stager(access, "test", "test", 60_000, copies)
        stager.stage([part] * 3)
        stager.stage([part])
        stager.finish()
        with Publisher(access, "test", copies) as by:
            return by.publish("q", epoch, stager.names)

    assert written(1, ReplicaAcks(1, 10_000)) == Published(True, 4)
    assert replica.say("TLEN", "a") == 4
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas have acknowledged the write after 50 ms"):
        written(2, ReplicaAcks(2, 50))
    assert not caplog.records
    assert written(2, ReplicaAcks(2, 50, needed=False)).now
    assert sum("continuing without" in record.message for record in caplog.records) == 2  # once for each of the two
    stager = Stager(access, "test", "test", 60_000)
    stager.stage([part])
    stager.finish()
    with Publisher(access, "test", ReplicaAcks(2, 50)) as by, pytest.raises(NotReplicatedError):
        by.publish("q", 3, stager.names)
    with Publisher(access, "test") as by:
        assert by.publish("q", 3, stager.names) == Published(False, 0)  # it was published, as the error says
    leader.say("DEL", "a")


def test_a_failover(made: tuple[Watch, Node, Node]) -> None:  # the last one here: roles change
    watch, leader, replica = made
    servers = LeaderConnection(access_by(*watch.ports, retries=300), "test")
    assert servers.ask(calls.tlen("a")) == [0]
    leader.kill()
    assert servers.ask(calls.tlen("a")) == [0]
    assert servers.leader().url == f"redis://127.0.0.1:{replica.port}"
    servers.close()
