"""Two server groups with etcd as their coordinator: slots are assigned and moved while etcd, or a link to it, fails."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from coordinator.slotmap import decode
from tests.coordinator.etcdproxy import EtcdProxy, Loss, written
from tests.coordinator.etcds import Etcds
from tests.replication.cluster import Cluster, cluster, wait_until
from tests.replication.clusters import Groups
from tests.replication.groups import status
from tests.replication.test_slot_moves import in_background, moving
from tests.wire.rawclient import Raw

SLOW: Final = {"move_pause": 5000, "group_lease": 4000}  # for a busy machine


class Place:
    """Two groups of one member. Group 1 reaches etcd through a proxy."""

    def __init__(self, servers: Cluster, directory: Path) -> None:
        self.etcds = Etcds(directory)
        self.proxy = EtcdProxy(self.etcds.ports[0])
        self.groups = Groups(servers, 0, divide=False)
        for port in (self.proxy.port, self.etcds.ports[0]):
            self.groups.add(coordinator=f"etcd://127.0.0.1:{port}", **SLOW)
        self.groups.divide()

    def lose(self, loss: Loss, event: str) -> None:
        """Lose one request that changes the map, or the reply. ``event``: a part of the text of its last event."""

        def judge(path: str, body: bytes) -> Loss:
            key, value = written(path, body)
            if not key.endswith("/map") or event not in decode(value).events[-1].what or self.proxy.lost:
                return ""
            return loss

        self.proxy.lost, self.proxy.judge = 0, judge

    def close(self) -> None:
        self.proxy.close()
        self.etcds.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with cluster() as servers:
        made = Place(servers, tmp_path_factory.mktemp("etcd"))
        yield made
        made.close()


def events(groups: Groups, text: str) -> int:
    return sum(text in each["what"] for each in groups.agree()["events"])


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_an_assignment_whose_outcome_is_unknown(place: Place, loss: Loss) -> None:
    groups = place.groups
    before = events(groups, "slots 0-9 belong to group 2")
    place.lose(loss, "slots 0-9 belong")
    groups.assign("0-9", to="2")
    assert place.proxy.lost == 1
    assert events(groups, "slots 0-9 belong to group 2") == before + 1
    assert groups.agree()["slots"][0] == [0, 9, "2"]
    groups.assign("0-9", to="1", at=2)


@pytest.mark.parametrize(
    ("loss", "event"), [("request", "slot 3300 belongs"), ("reply", "slot 3300 moves"), ("reply", "slot 3300 belongs")]
)
def test_a_move_whose_outcome_is_unknown(place: Place, loss: Loss, event: str) -> None:
    groups = place.groups
    one, two = groups.leader(1), groups.leader(2)
    assert one.say("SET", "{b}", loss) == b"OK"
    place.lose(loss, event)
    assert wait_until(lambda: one.say("TCLUSTER", "MOVE", "3300", "TO", "2") == b"OK", "a move")
    assert place.proxy.lost == 1
    assert two.say("GET", "{b}") == loss.encode()
    assert one.say("GET", "{b}") == f"MOVED 3300 127.0.0.1:{two.port}"
    assert (one.say("DBSIZE"), two.say("DBSIZE")) == (0, 1)
    assert two.say("TCLUSTER", "MOVE", "3300", "TO", "1") == b"OK"
    groups.agree()


def test_etcd_is_killed_and_starts_again_during_a_move(place: Place) -> None:
    groups = place.groups
    one, two = groups.leader(1), groups.leader(2)
    with Raw(one.port) as raw:
        assert raw("SET", "{b}", "1") == b"OK"
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        # a stage that can't be divided: the slots can't leave
        assert raw("TSTAGE", "{b}stage", "600000", "{c}y", "FIELDS", "1", "f", "VALUES", "v") == 1
    result = in_background(lambda: one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    wait_until(lambda: "publish or drop it" in str((moving(one) or {}).get("problem")), "a move that waits")
    place.etcds.kill(0)
    wait_until(lambda: not status(one)["lease_left_ms"] and not status(two)["lease_left_ms"], "both leases expire")
    place.etcds.start(0)
    wait_until(lambda: one.say("TDROP", "{b}stage") == 1, "the owner serves again")
    assert result() == b"OK" or groups.agree()["slots"][0] == [0, 8191, "1"]
    if groups.agree()["slots"][0] != [0, 8191, "1"]:
        assert two.say("TCLUSTER", "MOVE", "3300", "TO", "1") == b"OK"
    wait_until(lambda: one.say("GET", "{b}") == b"1" and two.say("DBSIZE") == 0, "the key at its owner only")
    assert groups.agree()["moves"] == []


def test_a_member_that_misses_changes_which_etcd_compacts(place: Place) -> None:
    """Its watch can't continue where it ended."""
    groups = place.groups
    place.proxy.cut()
    two = groups.leader(2)
    for words in (("UNASSIGN", "16383"), ("ASSIGN", "16383", "TO", "1"), ("UNASSIGN", "16382")):
        assert two.say("TCLUSTER", *words) == b"OK"
    url = f"http://{place.etcds.hosts}/v3/kv/"
    with urllib.request.urlopen(url + "range", b'{"key": "AA=="}', timeout=20) as reply:
        revision = json.loads(reply.read())["header"]["revision"]
    body = json.dumps({"revision": revision, "physical": True}).encode()
    urllib.request.urlopen(url + "compaction", body, timeout=20).close()
    place.proxy.closed = False
    assert groups.agree()["slots"][-1] == [16383, 16383, "1"]
    groups.assign("16382", to="2", at=2)
    groups.assign("16383", to="2")


def test_a_password_and_tls(servers: Cluster, tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    etcds = Etcds(tmp_path, tls=tmp_path)

    def post(path: str, **body: Any) -> None:
        data = json.dumps(body).encode()
        urllib.request.urlopen(f"https://{etcds.hosts}/v3/auth/{path}", data, timeout=20, context=context).close()

    try:
        post("role/add", name="root")
        post("user/add", name="root", password="s@:1")
        post("user/grant", user="root", role="root")
        post("enable")
        (tmp_path / "password").write_text("s@:1\n")
        options = "&".join(f"{name}={tmp_path}/{name}.pem" for name in ("ca", "cert", "key"))
        url = f"etcd://root@{etcds.hosts}?{options}&password-file={tmp_path}/password"
        groups = Groups(servers, coordinator=url, move_pause=5000, group_lease=15_000)  # passwords take etcd long
        one, two = groups.leader(1), groups.leader(2)
        assert one.say("SET", "{b}", "1") == b"OK"
        assert one.say("TCLUSTER", "MOVE", "3300", "TO", "2") == b"OK"
        two.restart()
        wait_until(lambda: two.say("GET", "{b}") == b"1", "the next leader serves")
        groups.agree()
    finally:
        etcds.close()
