"""``tidelog-server --restore``: what a leader sent to a new replica, recorded, becomes a data directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from replication.frames import ALIVE, BATCH, COPY, DONE, PIECE, ReplicationFrame, encode
from tests.replication.cluster import Cluster, Node, assert_same, only_time, wait_until
from tests.replication.test_formats import prepared
from tests.replication.test_rdb_only import Taker


class Recording:
    """What a leader sends, from PSYNC to the log offset that it had reached before."""

    def __init__(self, leader: Node) -> None:
        self.end = leader.offset
        with Taker(leader.port) as taker:
            assert taker.ask("REPLCONF", "tidelog", 1, "rdb-only", 1).startswith(b"+OK ")
            self.first = taker.ask("PSYNC", "?", -1)
            self.frames = [taker.frame(COPY)]
            while self.frames[-1].kind != DONE:
                self.frames.append(taker.frame(PIECE, DONE))
            at = self.frames[-1].offset
            while at < self.end:
                self.frames.append(taker.frame(BATCH))
                at = self.frames[-1].offset + len(self.frames[-1].payload)
        self.frames.append(ReplicationFrame(ALIVE, self.end, b"\0"))

    def raw(self) -> bytes:
        return self.first + b"\r\n" + b"".join(encode(*frame) for frame in self.frames)


def restore(directory: Path, data: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "_tidelog_server", "--dir", str(directory), "--wal-size", "1mb", "--restore"]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


def fill(leader: Node) -> None:
    """Some of everything, partly in the store and partly in the log."""
    leader("SET", "s", "v")
    leader("SET", b"bin\0\xff", bytes(range(256)), "PXAT", 9_999_999_999_999)
    leader("TMAPPEND", "k", "FIELDS", 1, "f", "VALUES", *range(100))
    leader("TREAD", "k", "0", 10, "GROUP", "g", 0, "RETRY", 10_000_000, 0)
    leader("TSTAGE", "open", 10_000_000, "k", "FIELDS", 1, "f", "VALUES", 1, 2)
    leader("TSTAGE", "st", 10_000_000, "k", "FIELDS", 1, "f", "VALUES", 1, 2)
    leader("TPUBLISH", "fence", 4, "st")
    leader("SAVE")
    leader("TMAPPEND", "k", "FIELDS", 1, "f", "VALUES", *range(100))
    leader("TREAD", "k", "0", 10, "GROUP", "g", 0, "RETRY", 10_000_000, 0)
    leader("TAPPEV", "k", "COUNT", 150)
    leader("SET", "later", "v")


@pytest.fixture
def leader(servers: Cluster) -> Node:
    leader = servers.node(stream_node_max_entries=16)
    fill(leader)
    return leader


def begun(servers: Cluster, leader: Node) -> Node:
    """A server on what was restored from a recording of ``leader``; both hold the same."""
    node = servers.node(start=False)
    with leader.still():
        done = restore(node.directory, Recording(leader).raw())
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert facts["log_offset"] == leader.offset
        assert (facts["keys"], facts["streams"], facts["entries"]) == (4, 1, 150)
        assert (facts["groups"], facts["pending"], facts["stages"]) == (1, 20, 1)
        node.start()
        assert node.digest() == leader.digest()
    return node


def test_everything_is_there_again(servers: Cluster, leader: Node) -> None:
    node = begun(servers, leader)
    with pytest.raises(Exception, match="STALE"):
        node("TPUBLISH", "fence", 3, "open")
    assert node("TPUBLISH", "fence", 5, "open")[0]
    node("TACK", "k", "g", *[row[0] for row in node("TPENDING", "k", "g", "-", "+", 5)])
    digest = node.digest()
    node.restart()
    assert node.digest() == digest


def test_entries_that_were_deleted_one_by_one(servers: Cluster) -> None:
    leader, node = servers.node(start=False), servers.node(start=False)
    prepared(leader.directory)
    leader.start()
    done = restore(node.directory, Recording(leader).raw())
    assert done.returncode == 0, done.stderr
    node.start()
    assert node.digest() == leader.digest()
    assert node.say("TRANGE", "s", "-", "+") == leader.say("TRANGE", "s", "-", "+")


def test_an_empty_server(servers: Cluster) -> None:
    leader, node = servers.node(), servers.node(start=False)
    done = restore(node.directory, Recording(leader).raw())
    assert done.returncode == 0, done.stderr
    node.start()
    assert node("DBSIZE") == 0
    node("SET", "k", "v")
    node.restart()
    assert node("GET", "k") == b"v"


def test_a_new_history_begins(servers: Cluster, leader: Node) -> None:
    node = begun(servers, leader)
    old, new = leader.info(), node.info()
    assert new["master_replid"] != old["master_replid"]
    assert new["master_replid2"] == old["master_replid"]
    assert only_time(new["second_repl_offset"], leader.offset)
    leader("SET", "k2", "of the old history")
    node("SET", "k2", "of the new history")
    leader.follow(node.port)
    assert_same(node, leader)
    assert node.syncs == (0, 1)  # what the old leader logged since then is deleted
    fresh = servers.node(of=node.port)
    assert_same(node, fresh)
    assert node.syncs == (1, 1)


def test_it_may_go_on_as_a_replica_of_its_old_leader(servers: Cluster, leader: Node) -> None:
    leader("CONFIG", "SET", "repl-backlog-ttl", 0)
    first = servers.node(of=leader.port)  # so that the journal is kept
    assert_same(leader, first)
    node = begun(servers, leader)
    leader("SET", "k2", "v")
    node.follow(leader.port)
    assert_same(leader, node)
    assert leader.syncs == (2, 1)  # copies to the first replica and to the recording, and one that goes on


def cut_in(data: bytes, place: str) -> bytes:
    return {"half": data[: len(data) // 2], "end": data[: -len(encode(ALIVE, 0, b"\0"))], "nothing": b""}[place]


@pytest.mark.parametrize("place", ["half", "end", "nothing"])
def test_an_input_that_was_cut_is_refused(leader: Node, tmp_path: Path, place: str) -> None:
    done = restore(tmp_path / "new", cut_in(Recording(leader).raw(), place))
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_batch_that_is_missing(leader: Node, tmp_path: Path) -> None:
    recorded = Recording(leader)
    first = next(number for number, frame in enumerate(recorded.frames) if frame.kind == BATCH)
    del recorded.frames[first]
    done = restore(tmp_path / "new", recorded.raw())
    assert done.returncode == 1
    assert b"a frame of kind B at log offset" in done.stderr


def test_a_damaged_entry_is_refused(leader: Node, tmp_path: Path) -> None:
    recorded = Recording(leader)
    at = next(number for number, frame in enumerate(recorded.frames) if frame.kind == PIECE)
    frame = recorded.frames[at]
    recorded.frames[at] = frame._replace(payload=frame.payload[:-1] + bytes([frame.payload[-1] ^ 1]))
    done = restore(tmp_path / "new", recorded.raw())
    assert done.returncode == 1
    assert b"is damaged" in done.stderr


def test_a_directory_with_something_in_it_is_left_alone(leader: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = restore(tmp_path, Recording(leader).raw())
    assert done.returncode == 1
    assert b"not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    leader.stop()
    before = sorted(path.name for path in leader.directory.iterdir())
    assert restore(leader.directory, b"").returncode == 1
    assert sorted(path.name for path in leader.directory.iterdir()) == before
    leader.start()
    wait_until(lambda: leader("GET", "s") == b"v", "its data is still there")
