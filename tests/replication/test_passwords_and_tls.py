"""Passwords and TLS between replica and leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.replication.cluster import Cluster, assert_same, in_sync, new_port, wait_until


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
