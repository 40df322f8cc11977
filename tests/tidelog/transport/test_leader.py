"""Which server is asked, and what happens when it does not answer or is no longer the leader."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import eventually
from tidelog.client import calls
from tidelog.testing import Server, free_port, running_server
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError

DEAD = "redis://127.0.0.1:1"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A leader and a replica that follows it."""
    with running_server() as leader, running_server(replicaof=f"127.0.0.1 {leader.port}") as replica:
        eventually(lambda: info(replica)["master_link_status"] == "up")
        yield leader, replica


def info(server: Server) -> dict[str, Any]:
    with server.client() as client:
        return dict(client.redis.info("replication"))


def connect(*urls: str, **settings: Any) -> LeaderConnection:
    return LeaderConnection(Access(urls, **{"retry_ms": 1} | settings), "test")


class Answers:
    """A server that answers each command of a connection with the next of some replies, then hangs up."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, args=(connections,))

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for replies in connections:
            peer, _ = self.listener.accept()
            self.connections += 1
            with peer:
                for reply in [b"+OK\r\n", b"+OK\r\n", *replies]:  # the first ones for CLIENT SETNAME and MULTISLOT
                    peer.recv(1000)
                    peer.sendall(reply)

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self.listener.close()
        assert not self._thread.is_alive(), "it waits for a connection that never came"


def test_the_leader_is_asked_wherever_it_is_in_the_list(pair: tuple[Server, Server]) -> None:
    leader, replica = pair
    for urls in ((leader.url,), (leader.url, replica.url), (replica.url, leader.url)):
        servers = connect(*urls)
        assert servers.leader().url == leader.url
        assert servers.ask(calls.tlen("a"), calls.tcount("a")) == [0, 0]
        servers.close()


def test_a_single_server_counts_as_the_leader(pair: tuple[Server, Server]) -> None:
    _, replica = pair
    servers = connect(replica.url)
    assert servers.leader().url == replica.url
    assert servers.replicas() == (replica.url,)
    servers.close()


def test_replicas(pair: tuple[Server, Server]) -> None:
    leader, replica = pair
    eventually(lambda: info(leader)["connected_slaves"] == 1)
    for urls in ((leader.url,), (replica.url, leader.url)):
        servers = connect(*urls)
        assert servers.replicas() == (replica.url,)
        servers.close()


def test_replicas_have_the_password_of_the_leader() -> None:
    replicas = b"*3\r\n$2\r\nr1\r\n$1\r\n1\r\n$1\r\n9\r\n*3\r\n$3\r\n::2\r\n$1\r\n2\r\n$1\r\n9\r\n"
    with Answers([b"+OK\r\n", b"*3\r\n$6\r\nmaster\r\n:9\r\n*2\r\n" + replicas]) as server:
        servers = connect(server.url.replace("//", "//user:secret@"))
        assert servers.replicas() == ("redis://user:secret@r1:1", "redis://user:secret@[::2]:2")
        servers.close()


def test_a_failover_is_followed() -> None:
    with running_server() as one, running_server(replicaof=f"127.0.0.1 {one.port}") as two:
        eventually(lambda: info(two)["master_link_status"] == "up")
        servers = connect(one.url, two.url, retries=100, retry_ms=50)
        assert servers.ask(calls.tstage("s", 60_000, "a", ["n"], [(1,)])) == [1]
        assert servers.leader().url == one.url
        with one.client() as client:
            client.redis.execute_command("FAILOVER")
        eventually(lambda: info(two)["role"] == "master")
        (published,) = servers.ask(calls.tpublish("f", 1, "s"))  # the old leader answers READONLY
        assert published.now
        assert servers.leader().url == two.url
        servers.close()


def test_no_leader_at_all() -> None:
    with running_server(replicaof=f"127.0.0.1 {free_port()}") as replica:
        servers = connect(replica.url, f"redis://127.0.0.1:{free_port()}", retries=0)
        with pytest.raises(UnreachableError, match=r"no leader among urls \(.*: a replica; redis://127"):
            servers.ask(calls.tlen("a"))


def test_nobody() -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=r"127.0.0.1:\d+ in 3 attempts \(retries, .*ConnectionRefused") as caught:
        connect(url, retries=2).ask(calls.tlen("a"))
    assert "secret" not in str(caught.value)


def test_messages_name_the_settings_of_the_caller() -> None:
    access = Access((f"redis://127.0.0.1:{free_port()}",), retries=0, names={"retries": "tries", "retry_ms": "pause"})
    with pytest.raises(UnreachableError, match=r"in 1 attempt \(tries, pause\); the last one"):
        LeaderConnection(access, "test").ask(calls.tlen("a"))


def test_a_single_attempt_is_not_counted() -> None:
    with pytest.raises(UnreachableError, match=r"^no answer from redis://127.0.0.1:\d+: ConnectionRefusedError: "):
        connect(f"redis://127.0.0.1:{free_port()}", retries=0).ask(calls.tlen("a"))


def test_errors_that_pass_are_tried_again_and_others_are_results() -> None:
    with Answers([b"-LOADING wait\r\n"], [b":7\r\n-READONLY no\r\n"], [b":7\r\n-WRONGTYPE no\r\n"]) as server:
        servers = connect(server.url, retries=5)
        seven, wrong = servers.ask(calls.tlen("a"), calls.tlen("b"))
        assert seven == 7
        assert isinstance(wrong, ReplyError)
        assert wrong.code == "WRONGTYPE"
        assert server.connections == 3
        servers.close()


def test_an_error_that_does_not_pass_ends_the_attempts() -> None:
    servers = connect(DEAD, retries=5)
    tried = []

    def do() -> None:
        tried.append(1)
        raise ReplyError("ERR no")

    with pytest.raises(ReplyError, match="ERR no"):
        servers.attempts(do)
    assert len(tried) == 1


def test_nothing_to_ask_needs_no_server() -> None:
    assert connect(DEAD, retries=0).ask() == []


def test_passwords() -> None:
    with running_server(requirepass="secret") as server:
        for access in (Access((server.url,), password="secret"), Access((server.url.replace("//", "//:secret@"),))):
            servers = LeaderConnection(access, "test")
            assert servers.ask(calls.tlen("a")) == [0]
            servers.close()
        for wrong, message in (("wrong", "WRONGPASS"), (None, "NOAUTH")):
            with pytest.raises(ReplyError, match=message):
                LeaderConnection(Access((server.url,), password=wrong), "test").leader()
