"""Moves of slots over TLS, and with etcd as the coordinator."""

from __future__ import annotations

from pathlib import Path

from tests.coordinator.etcds import Etcds
from tests.replication.cluster import Cluster
from tests.replication.clusters import Groups
from tests.replication.test_passwords_and_tls import Certificates


def test_tls(servers: Cluster, tmp_path: Path) -> None:
    """The leader of the old owner verifies the certificate of the other one."""
    certificates = Certificates(tmp_path)
    groups = Groups(servers, divide=False, move_pause=5000)
    one, two = groups.nodes
    for node, authority in ((two, certificates.ca), (one, certificates.other_ca)):
        node.kill()
        node.config |= {name.replace("_", "-"): value for name, value in certificates.settings().items()}
        node.config["tls-ca-cert-file"] = authority
        node.start()
    groups.agree()
    one("SET", "b", "1")
    reply = str(one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    assert "certificate verify failed" in reply
    assert f"the leader of the other group, 2a (127.0.0.1:{two.config['tls-port']})" in reply
    one.kill()
    one.config["tls-ca-cert-file"] = certificates.ca
    one.start()
    groups.agree()
    assert one.say("TCLUSTER", "MOVE", "3300", "TO", "2") == b"OK"
    assert two.say("GET", "b") == b"1"


def test_etcd(servers: Cluster, tmp_path: Path) -> None:
    etcd = Etcds(tmp_path)
    try:
        groups = Groups(servers, divide=False, move_pause=5000, coordinator=f"etcd://{etcd.hosts}")
        one, two = groups.leader(1), groups.leader(2)
        one("XADD", "b", "1-1", "f", "v")
        assert one.say("TCLUSTER", "MOVE", "0-8191", "TO", "2") == b"OK"
        assert two.say("XRANGE", "b", "-", "+") == [[b"1-1", [b"f", b"v"]]]
        assert one.say("DBSIZE") == 0
        assert groups.agree()["moves"] == []
    finally:
        etcd.close()
