"""Moves of slots over TLS, with etcd as the coordinator, to a silent leader, and of records that exceed a request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.slotmap import MapGroup, MapMember
from respserver.slotmaps import moving
from respserver.slotmaps.moving import SlotMover
from respserver.slotmaps.peer import GroupPeer, PeerError
from tests.coordinator.etcds import Etcds
from tests.replication.cluster import Cluster, cluster, wait_until
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


@pytest.fixture(scope="module")
def pair() -> Iterator[Groups]:
    with cluster() as servers:
        yield Groups(servers, divide=False, move_pause=5000)


def test_records_that_exceed_the_largest_argument(pair: Groups) -> None:
    """As a string of 512 MB does, together with its key and its time to live."""
    one, two = pair.leader(1), pair.leader(2)
    value = b"0123456789abcdef" * 200_000  # 3.2 MB
    one("SET", "b", value, "EX", 10_000)
    one("XADD", "{b}stream", "1-1", "f", value)
    one("SET", "{b}small", "1")
    two("CONFIG", "SET", "proto-max-bulk-len", 1 << 20)
    pair.move("3300", to="2")
    two("CONFIG", "SET", "proto-max-bulk-len", 512 << 20)
    assert two.say("GET", "b") == value
    assert 9000 < two.say("TTL", "b") <= 10_000
    assert two.say("XRANGE", "{b}stream", "-", "+") == [[b"1-1", [b"f", value]]]
    assert two.say("GET", "{b}small") == b"1"
    assert one.say("DBSIZE") == 0
    pair.move("3300", to="1", at=2)
    assert one.say("GET", "b") == value


def test_abort_while_the_other_leader_is_suspended(pair: Groups) -> None:
    one, two = pair.leader(1), pair.leader(2)
    one("SET", "{b}key", "1")
    replies: list[Any] = []
    two.freeze()
    try:
        move = threading.Thread(target=lambda: replies.append(one.say("TCLUSTER", "MOVE", "3300", "TO", "2")))
        move.start()
        wait_until(lambda: pair.agree(one)["moves"], "the move has begun")
        began = time.monotonic()
        assert one.say("TCLUSTER", "ABORT") == b"OK"
        move.join(20)
        assert time.monotonic() - began < 20  # its silence is noticed after 30 s
    finally:
        two.thaw()
    assert "the move was aborted" in str(replies)
    assert one.say("GET", "{b}key") == b"1"


class Leader:
    """A leader that replies to BEGIN after a PING, and only if it is ``alive``."""

    def __init__(self, alive: bool) -> None:
        self.alive = alive
        self._pings = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                if self.alive and b"PING" in data:
                    writer.write(b"+PONG\r\n")
                    self._pings.set()
                elif self.alive:
                    await self._pings.wait()
                    writer.write(b"+OK\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.interpreted
@pytest.mark.parametrize("alive", [True, False])
def test_a_leader_that_does_not_reply_to_the_first_command(alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is busy with it is waited for."""
    monkeypatch.setattr(moving, "SILENCE", 30.0 if alive else 1.0)
    monkeypatch.setattr(moving, "PROBE", 0.01)

    async def story() -> None:
        server = await asyncio.start_server(Leader(alive), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        group = MapGroup("0" * 40, 1, "2a", 0, {"2a": MapMember("1" * 40, "127.0.0.1", port, 0, "")})
        config: Any = SimpleNamespace(tls_replication=False, masterauth="", masteruser="")
        peer = await GroupPeer.open(group, config, 20.0)
        try:
            if alive:
                await SlotMover._begin(peer, "name", "2", group, config)
            else:
                with pytest.raises(PeerError, match="the leader of group 2 was silent for 1 seconds"):
                    await SlotMover._begin(peer, "name", "2", group, config)
        finally:
            peer.close()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:  # of the connections
                await task

    asyncio.run(story())
