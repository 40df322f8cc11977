"""Copies to a replica that has most of the data: only the differences are transferred, and nothing else changes."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from persistence.noderuns import CHUNK, MOST_NODES, RUN
from persistence.storecopy import ENTRY, NODES, REUSED
from persistence.storecopy import entries as entries_of
from replication.frames import BATCH, COPY, COPY_BODY, DONE, DONE_BODY, PIECE, REPORT, encode
from replication.handshake import DELTA, request
from respserver.maintenance import checkpoints
from respserver.runtime.threads import in_thread
from respserver.testing import start_in_thread
from tests.replication.cluster import Cluster, Node, assert_same, cluster, in_sync, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy
from tests.replication.proxy import Proxy
from tests.replication.test_copy import fill
from tests.replication.test_psync import Replica
from tests.wire.rawclient import Raw

ENTRIES = 20_000  # 2 MB
RNG = random.Random(11)
NO_DIGEST = b"\0" * 16


class Rejoining:
    """A leader, and a server that was its replica, became a leader, and wrote something."""

    def __init__(self, made: Cluster) -> None:
        self.leader = made.node()
        fill(self.leader, ENTRIES)
        self.replica = made.node(of=self.leader.port)
        wait_until(lambda: in_sync(self.leader, self.replica), "a first copy")
        self.whole = copied(self.replica)["bytes"]
        self.proxy: Proxy = made.proxy(self.leader)
        self.digest = ""

    def diverge(self) -> None:
        self.proxy.calm()
        self.replica.lead()
        self.replica("TAPPEND", "big", "f", "lost")
        self.replica("SET", "old", "data")
        self.leader("TAPPEND", "big", "f", "new")
        self.leader("TAPPEV", "big", "COUNT", self.leader("TLEN", "big") - 100)
        self.replica("SAVE")
        self.leader("SAVE")
        self.digest = self.replica.digest()

    def follow(self) -> None:
        self.replica.follow(self.proxy.port)

    def has_old_data(self) -> None:
        self.replica.lead()
        self.replica.kill()
        self.replica.start()
        assert self.replica.digest() == self.digest

    def completes(self) -> dict[str, int]:
        """The figures of the copy."""
        assert_same(self.leader, self.replica)
        assert self.replica("EXISTS", "old") == 0
        return copied(self.replica)


def copied(node: Node) -> dict[str, int]:
    """What a replica says of its last copy."""
    line = [line for line in node.output if "Full copy complete" in line][-1]
    return {name: int(value) for name, _, value in (word.partition("=") for word in line.split()) if value.isdigit()}


@pytest.fixture(scope="module")
def joined() -> Iterator[Rejoining]:
    with cluster() as made:
        yield Rejoining(made)


@pytest.fixture
def rejoining(joined: Rejoining) -> Rejoining:
    joined.diverge()
    return joined


def test_only_differences_are_transferred(rejoining: Rejoining) -> None:
    down, up = rejoining.proxy.down.passed, rejoining.proxy.up.passed
    rejoining.follow()
    wait_until(lambda: rejoining.replica.link_up, "the copy is complete")
    reused = rejoining.replica.info()["master_sync_reused_bytes"]
    transferred = rejoining.proxy.down.passed - down + rejoining.proxy.up.passed - up
    figures = rejoining.completes()
    assert figures["reused"] == reused
    assert reused > 0.7 * rejoining.whole
    assert figures["bytes"] < transferred < 0.04 * rejoining.whole
    rejoining.replica.restart()
    assert_same(rejoining.leader, rejoining.replica)


def test_a_replica_whose_records_are_gone_from_the_journal(servers: Cluster) -> None:
    leader = servers.node(repl_backlog_size="16kb", repl_backlog_ttl=1)
    fill(leader, ENTRIES)
    replica = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, replica), "a first copy")
    whole = copied(replica)["bytes"]
    replica("SAVE")
    replica.stop()
    fill(leader, 1000)
    wait_until(lambda: leader.info()["repl_backlog_active"] == 0, "the journal is let go")
    fill(leader, 1000)
    replica.start()
    assert_same(leader, replica)
    assert leader.syncs == (2, 0)
    figures = copied(replica)
    assert figures["reused"] > 0.7 * whole
    assert figures["bytes"] < 0.4 * whole


def test_a_checkpoint_precedes_the_copy(rejoining: Rejoining) -> None:
    """Otherwise all records since the last one would be sent as well."""
    rejoining.leader("TMAPPEND", "log", "FIELDS", 1, "f", "VALUES", *["v" * 1000] * 500)
    passed = rejoining.proxy.down.passed
    rejoining.follow()
    rejoining.completes()
    assert rejoining.proxy.down.passed - passed < 100_000


@pytest.mark.parametrize("slow", [True, False], ids=["slow", "failing"])
def test_a_copy_does_not_need_the_checkpoint(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica waits for an answer, so the copy begins anyway: after a few seconds, or at once after an error."""
    over = threading.Event()

    async def waits(work: Callable[[], Any]) -> Any:
        return await in_thread(lambda: (over.wait(), work())[1])

    def fails(rewrite: bool) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with start_in_thread() as leader, Raw(leader.port) as client, Replica(leader.port) as replica:
        client("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *["v" * 1000] * 500)
        monkeypatch.setattr(checkpoints, "PATIENCE", 0.1)
        if slow:
            monkeypatch.setattr(checkpoints, "in_thread", waits)
        else:
            monkeypatch.setattr(leader.server.checkpoints, "_start", fails)
        introduced(replica, DELTA)
        try:
            assert replica.ask("PSYNC", "?", -1).endswith(b" 0 DELTA"), "the store is that before the checkpoint"
            assert replica.frame(PIECE, DONE).kind == DONE
            assert replica.frame(BATCH).offset == 0
        finally:
            over.set()


def test_a_damaged_node_is_fetched(rejoining: Rejoining) -> None:
    rejoining.follow()
    before = rejoining.completes()["reused"]
    replica = rejoining.replica
    rejoining.diverge()
    replica.stop()
    damage(replica.directory / "store")
    replica.start()
    rejoining.follow()
    assert 0 < rejoining.completes()["reused"] < before
    assert len(replica("TREAD", "big", "0", 2 * ENTRIES)) == rejoining.leader("TLEN", "big")


def damage(store: Path) -> None:
    """Flip a bit in the middle of a node."""
    with lmdb.open(str(store), max_dbs=9) as env, env.begin() as txn:
        blobs = [bytes(blob) for _, blob in txn.cursor(db=env.open_db(b"nodes", txn=txn, create=False))]
    data = store / "data.mdb"
    raw = bytearray(data.read_bytes())
    blob = blobs[len(blobs) // 2]
    at = raw.index(blob)
    while at >= 0:  # freed pages may have it, too
        raw[at + len(blob) // 2] ^= 1
        at = raw.find(blob)
    data.write_bytes(raw)


def test_a_replica_killed_during_the_copy(rejoining: Rejoining) -> None:
    rejoining.proxy.down.rate = 2_000
    rejoining.follow()
    wait_until(lambda: rejoining.replica.info()["master_sync_reused_bytes"] > 0, "a copy is under way")
    rejoining.replica.kill()
    rejoining.proxy.cut()
    rejoining.replica.config.pop("replicaof")
    rejoining.replica.start()
    rejoining.has_old_data()
    rejoining.proxy.calm()
    rejoining.follow()
    assert rejoining.completes()["reused"]


def test_the_leader_killed_during_the_copy(rejoining: Rejoining) -> None:
    rejoining.proxy.down.rate = 2_000
    rejoining.follow()
    wait_until(lambda: rejoining.replica.info()["master_sync_reused_bytes"] > 0, "a copy is under way")
    rejoining.leader.kill()
    wait_until(lambda: rejoining.replica.info()["master_sync_in_progress"] == 0, "the copy is given up")
    rejoining.has_old_data()
    rejoining.leader.start()
    rejoining.proxy.calm()
    rejoining.follow()
    assert rejoining.completes()["reused"]


def test_a_copy_that_is_cut(rejoining: Rejoining) -> None:
    proxy = rejoining.proxy
    proxy.down.rate = 3_000
    for flow, after in ((proxy.down, 500), (proxy.up, 600), (proxy.down, 3_000)):
        flow.cut(after=after)
        rejoining.follow()
        wait_until(flow.fired.is_set, "the link is cut")
        assert rejoining.replica("GET", "old") == b"data"
    proxy.calm()
    assert rejoining.completes()["reused"]


# -- earlier versions, and clients that take a copy ----------------------------------------------------------
@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    with cluster() as made:
        leader = made.node()
        fill(leader, 1000)
        yield leader


def introduced(replica: Replica, *capabilities: bytes) -> None:
    words = [word for one in capabilities for word in (b"capa", one)]
    assert replica.ask("REPLCONF", "tidelog", 1, "capa", "format-4", *words).startswith(b"+OK")


@pytest.mark.parametrize(("capabilities", "options"), [([], []), ([DELTA], ["rdb-only", 1])], ids=["old", "rdb-only"])
def test_a_whole_copy(shared: Node, capabilities: list[bytes], options: list[str | int]) -> None:
    with Replica(shared.port) as replica:
        introduced(replica, *capabilities)
        if options:
            assert replica.ask("REPLCONF", *options) == b"+OK"
        answer = replica.ask("PSYNC", "?", -1)
        assert answer.startswith(b"+FULLRESYNC ")
        assert not answer.endswith(b"DELTA")
        assert replica.frame(REPORT, DONE).kind == DONE


# -- replicas that break the protocol ------------------------------------------------------------------------
KEYS = [bytes([at]) * 32 for at in range(3)]
REPORTS = {
    "not whole": ([b"x"], "invalid size"),
    "too long": ([b"".join(RUN.pack(b"%032d" % at, 1, NO_DIGEST) for at in range(CHUNK // RUN.size + 1))], "size"),
    "out of order": ([RUN.pack(KEYS[1], 1, NO_DIGEST) + RUN.pack(KEYS[0], 1, NO_DIGEST)], "out of order"),
    "the next one out of order": ([RUN.pack(KEYS[0], 1, NO_DIGEST)] * 2, "out of order"),
    "longer than a request": ([b"x" * 100_000], "broke the protocol"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_invalid_reports(shared: Node, name: str) -> None:
    chunks, reason = REPORTS[name]
    lines = len(shared.output)
    with Replica(shared.port) as replica:
        introduced(replica, DELTA)
        assert replica.ask("PSYNC", "?", -1).endswith(b" DELTA")
        for chunk in chunks:
            replica.frame(REPORT)
            replica.sock.sendall(request("REPLCONF", "NODES", chunk))
        assert replica.closed()
    wait_until(lambda: any(reason in line for line in shared.output[lines:]), "the leader says why")


@pytest.mark.parametrize("capabilities", [[], [DELTA]], ids=["never", "twice"])
def test_a_report_that_was_not_requested(shared: Node, capabilities: list[bytes]) -> None:
    lines = len(shared.output)
    with Replica(shared.port) as replica:
        introduced(replica, *capabilities)
        replica.ask("PSYNC", "?", -1)
        replica.sock.sendall(request("REPLCONF", "NODES", RUN.pack(KEYS[0], 1, NO_DIGEST)) * 3)
        assert replica.closed()
    wait_until(lambda: any("were not requested" in line for line in shared.output[lines:]), "the leader says why")


def test_a_report_of_other_nodes(shared: Node) -> None:
    """The leader sends all nodes, whatever the digests are of."""
    with Replica(shared.port) as replica:
        introduced(replica, DELTA)
        assert replica.ask("PSYNC", "?", -1).endswith(b" DELTA")
        reports = [RUN.pack(KEYS[0], 1, NO_DIGEST), RUN.pack(b"\xff" * 32, MOST_NODES, NO_DIGEST), b""]
        found: list[int] = []
        while (frame := replica.frame(PIECE, REPORT, DONE)).kind != DONE:
            if frame.kind == REPORT:
                replica.sock.sendall(request("REPLCONF", "NODES", reports.pop(0)))
            else:
                found += [db for db, _, _ in entries_of(frame.payload)]
        assert REUSED not in found
        assert NODES in found
        assert (len(found),) == DONE_BODY.unpack(frame.payload)


# -- leaders that break the protocol -------------------------------------------------------------------------
def answer(delta: bytes, *frames: bytes) -> bytes:
    return copy(9, encode(COPY, 9, COPY_BODY.pack(1, 1)), *frames).replace(b" 9\r\n", b" 9" + delta + b"\r\n", 1)


def reference(first: bytes, last: bytes) -> bytes:
    value = last + NO_DIGEST
    return encode(PIECE, 9, ENTRY.pack(REUSED, len(first), len(value)) + first + value)


LEADERS = {
    "a reference to nodes that are not there": (answer(b" DELTA", reference(KEYS[0], KEYS[1])), "does not have", False),
    "a reference instead of a copy": (answer(b"", reference(KEYS[0], KEYS[1])), "not reported", True),
    "a request for a report instead of a copy": (answer(b"", encode(REPORT, 9)), "in the middle of a copy", True),
    "a request after the end of the report": (answer(b" DELTA", *[encode(REPORT, 9)] * 9), "middle of a copy", True),
    "an unknown kind of copy": (answer(b" DELTAS"), "answered PSYNC with", True),
}


@pytest.mark.parametrize("name", LEADERS)
def test_leaders(name: str, servers: Cluster) -> None:
    script, reason, again = LEADERS[name]
    node = servers.node()
    fill(node, 1000)
    before = node.digest()
    with FakeLeader(lambda _: script) as fake:
        node.follow(fake.port)
        wait_until(lambda: node.logged(reason), "the replica says why")
        wait_until(lambda: fake.links >= 2, "it tries again")
        said = [DELTA in argv for argv in fake.requests if argv[:2] == [b"REPLCONF", b"tidelog"]]
        assert said[:2] == [True, again], "the next copy must be a whole one"
        assert ID not in node.info().values()
    node.lead()
    assert node.digest() == before
    node.restart()
    assert node.digest() == before


def test_a_report_has_all_nodes(servers: Cluster) -> None:
    node = servers.node(stream_node_max_entries=10)
    fill(node, 10_000)  # 1000 nodes
    fake = FakeLeader(lambda _: answer(b" DELTA", encode(REPORT, 9), encode(REPORT, 9)))
    with fake:
        node.follow(fake.port)
        found: list[bytes] = []

        def reported() -> bool:
            found[:] = [argv[2] for argv in fake.requests if argv[:2] == [b"REPLCONF", b"NODES"]]
            return len(found) >= 2

        wait_until(reported, "the replica reports its nodes")
    assert sum(nodes for _, nodes, _ in RUN.iter_unpack(found[0])) == 1000
    assert found[1] == b""
    assert NODES < REUSED
