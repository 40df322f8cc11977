"""Passwords and TLS between replica and leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from tests.replication.cluster import Cluster, assert_same, connect, in_sync, new_port, wait_until
from tests.replication.fakeleader import FakeLeader


def test_the_right_password(servers: Cluster) -> None:
    leader = servers.node(requirepass="secret word", start=False)
    leader.redis.connection_pool.connection_kwargs["password"] = "secret word"
    leader.start()
    replica = servers.node(of=leader.port, masterauth="secret word")
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.kill()
    replica.config |= {"masteruser": "default"}
    replica.start()
    assert_same(leader, replica)


def test_a_wrong_password_and_then_the_right_one(servers: Cluster) -> None:
    leader = servers.node(requirepass="secret")
    leader.redis.connection_pool.connection_kwargs["password"] = "secret"
    leader.redis.connection_pool.disconnect()
    replica = servers.node(of=leader.port, masterauth="wrong")
    wait_until(lambda: replica.logged("refuses masterauth"), "it says so")
    assert not replica.link_up
    replica("CONFIG", "SET", "masterauth", "")
    wait_until(lambda: replica.logged("set masterauth"), "it says what is to be done")
    assert not any("secret" in line or "wrong" in line for line in replica.output if "WRONGPASS" not in line)
    replica("CONFIG", "SET", "masterauth", "secret")
    wait_until(lambda: in_sync(leader, replica), "in sync")


@pytest.mark.parametrize(
    ("user", "password", "sent"),
    [
        ("", "", []), ("", "secret", [b"secret"]), ("repl", "secret", [b"repl", b"secret"]), ("repl", "", []),
        ("d\u00fcse", "ge heim", ["d\u00fcse".encode(), b"ge heim"]),
    ],
)  # fmt: skip
def test_what_a_replica_sends_as_its_credentials(servers: Cluster, user: str, password: str, sent: list[bytes]) -> None:
    """As Redis: nothing without masterauth, and masteruser only if it is set."""
    with FakeLeader(lambda _: b"-ERR no\r\n") as fake:
        node = servers.node()
        node("CONFIG", "SET", "masteruser", user, "masterauth", password)
        node.follow(fake.port)
        wait_until(lambda: fake.links, "it comes to PSYNC")
        asked = [argv for argv in fake.requests if argv[0] != b"REPLCONF"]
        assert asked[1][0] == (b"AUTH" if sent else b"PSYNC")
        assert asked[1][1:] == sent or not sent


def test_a_user_that_is_none(servers: Cluster) -> None:
    leader = servers.node(requirepass="secret")
    replica = servers.node(of=leader.port, masteruser="nobody", masterauth="secret")
    wait_until(lambda: replica.logged("refuses masterauth for masteruser 'nobody'"), "it says so")
    replica("CONFIG", "SET", "masteruser", "default")
    wait_until(lambda: replica.link_up, "in sync")


class Certificates:
    def __init__(self, where: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(where / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        own = self.authority.issue_cert("localhost", "127.0.0.1")
        self.cert, self.key = str(where / "server.pem"), str(where / "server.key")
        own.cert_chain_pems[0].write_to_path(self.cert)
        own.private_key_pem.write_to_path(self.key)
        self.other_ca = str(where / "other.pem")
        trustme.CA().cert_pem.write_to_path(self.other_ca)

    def settings(self) -> dict[str, Any]:
        return {
            "tls_port": new_port(), "tls_cert_file": self.cert, "tls_key_file": self.key, "tls_ca_cert_file": self.ca,
            "tls_replication": "yes",
        }  # fmt: skip


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_tls(servers: Cluster, certificates: Certificates) -> None:
    """Both ends present certificates of one authority."""
    settings = certificates.settings()
    leader = servers.node(**settings)
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(1000))
    proxy = servers.proxy(int(settings["tls_port"]))
    replica = servers.node(of=proxy.port, **certificates.settings())
    assert_same(leader, replica)
    proxy.cut()
    leader("TAPPEND", "s", "f", "v")
    assert_same(leader, replica)
    assert leader.syncs == (1, 1)
    proxy.down.corrupt(after=10)
    leader("TAPPEND", "s", "f", "x" * 1000)
    assert_same(leader, replica)
    assert leader.syncs == (1, 2)


def test_tls_with_an_unknown_authority(servers: Cluster, certificates: Certificates) -> None:
    settings = certificates.settings()
    leader = servers.node(**settings)
    replica = servers.node(of=int(settings["tls_port"]), tls_replication="yes", tls_ca_cert_file=certificates.other_ca)
    wait_until(lambda: replica.logged("certificate verify failed"), "it says so")
    assert not replica.link_up
    assert leader("PING")


def test_plain_text_to_a_tls_port(servers: Cluster, certificates: Certificates) -> None:
    settings = certificates.settings()
    leader = servers.node(**settings)
    replica = servers.node(of=int(settings["tls_port"]))
    wait_until(lambda: replica.logged(f"127.0.0.1:{settings['tls_port']}: "), "it says so")
    assert not replica.link_up
    assert leader("PING")


def test_tls_to_a_plain_port(servers: Cluster, certificates: Certificates) -> None:
    leader = servers.node()
    replica = servers.node(of=leader.port, **certificates.settings())
    wait_until(lambda: replica.logged(f"127.0.0.1:{leader.port}: "), "it says so")
    assert not replica.link_up
    assert leader("PING")


def test_a_replica_that_logs_in_as_a_user_of_its_own(servers: Cluster) -> None:
    """It needs no more than +psync +replconf +ping, and may do nothing else."""
    leader = servers.node()
    leader("ACL", "SETUSER", "link", "on", ">secret", "+replconf", "+ping")
    leader("SET", "k", "v")
    replica = servers.node(of=leader.port, masteruser="link", masterauth="secret")
    wait_until(lambda: replica.logged("needs +psync +replconf +ping"), "it says what is missing")
    assert not replica.link_up
    leader("ACL", "SETUSER", "link", "+psync")
    assert_same(leader, replica)
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(1000))
    assert leader("WAIT", 1, 10_000) == 1
    assert_same(leader, replica)
    link = connect(leader.port, username="link", password="secret")
    with link, pytest.raises(redis.exceptions.NoPermissionError):
        link.get("k")
    leader("ACL", "SETUSER", "link", "-psync")
    wait_until(lambda: not replica.link_up, "it is disconnected")
    leader("ACL", "SETUSER", "link", "+psync")
    leader("SET", "k", "w")
    assert_same(leader, replica)
    assert leader.syncs[0] == 1  # the rest were continuations
    leader("ACL", "DELUSER", "link")
    wait_until(lambda: replica.logged("refuses masterauth"), "its user is gone")


def test_replicas_have_users_of_their_own(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("ACL", "SETUSER", "al", "on", "nopass", "~a", "+get", "&c", "+subscribe")
    assert replica("ACL", "USERS") == [b"default"]
    replica("ACL", "SETUSER", "al", "on", "nopass", "&c", "+subscribe")
    with connect(replica.port, username="al", password="x") as c, c.pubsub() as listener:
        listener.subscribe("c")
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        leader("PUBLISH", "c", "hello")
        assert listener.get_message(timeout=10)["data"] == b"hello"
