"""An unmodified Sentinel fails over from a leader that died: clients go on, and what WAIT promised is there."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.replication.cluster import Cluster, Node, assert_same, cluster, in_sync, wait_until
from tests.replication.sentinels import SERVICE, Watch, sentinels

PROGRAM = "tidelog"  # "redis" tries the test itself, on redis-server
WORDS = {"tidelog": ("TAPPEND", "s", "n"), "redis": ("XADD", "s", "*", "n")}
RANGE = {"tidelog": "TRANGE", "redis": "XRANGE"}


class Writer:
    """Appends to the leader that the Sentinels name, each entry with WAIT 1, whatever happens meanwhile."""

    def __init__(self, watch: Watch) -> None:
        self.acknowledged: list[bytes] = []  # values of entries that the leader and one replica have
        self.words = WORDS[PROGRAM]
        self._stop = threading.Event()
        self._client = watch.client().master_for(
            SERVICE, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            value = b"%d" % number
            pipe = self._client.pipeline(transaction=False)
            pipe.execute_command(*self.words, value)
            pipe.execute_command("WAIT", 1, 300)
            with contextlib.suppress(redis.RedisError, OSError):
                _, replicas = pipe.execute()
                if replicas:
                    self.acknowledged.append(value)
            self._stop.wait(0.002)

    def goes_on(self, more: int = 20) -> None:
        """Wait until so many more entries are acknowledged."""
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough, f"{more} more acknowledged writes", 30)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()


def trio(made: Cluster) -> tuple[Node, Node, Node]:
    leader = made.node(file=True)
    replicas = [made.node(of=leader.port, file=True) for _ in range(2)]
    wait_until(lambda: in_sync(leader, *replicas), "a first sync")
    return leader, replicas[0], replicas[1]


def values(node: Node) -> set[bytes]:
    """What the stream of the writer holds on a node."""
    rows = node.say(RANGE[PROGRAM], "s", "-", "+")
    return {row[2] for row in rows} if PROGRAM == "tidelog" else {row[1][1] for row in rows}


@pytest.mark.parametrize("count", [1, 3])
def test_the_leader_dies(tmp_path: Path, count: int) -> None:
    with cluster(PROGRAM) as made:
        nodes = trio(made)
        old = nodes[0]
        with sentinels(tmp_path, old.port, count) as watch:
            watch.wait_until_they_know(replicas=2)
            writer = Writer(watch)
            try:
                writer.goes_on()
                old.kill()
                writer.goes_on()
                port = wait_until(watch.leader_port, "the Sentinels agree")
                new = next(node for node in nodes if node.port == port)
                assert new is not old
                other = next(node for node in nodes if node is not old and node is not new)
                wait_until(lambda: other.info().get("master_port") == new.port, "the other replica follows it")
                wait_until(lambda: other.link_up, "the other replica hears it")
                old.start()
                wait_until(lambda: old.role == "slave" and old.info()["master_port"] == new.port, "the old one follows")
                writer.goes_on()
            finally:
                writer.stop()
            assert_same(new, other, old)
            missing = set(writer.acknowledged) - values(new)
            assert not missing, f"{len(missing)} writes that WAIT acknowledged are gone"
        # Their roles are in their files: they keep them without a Sentinel.
        assert "replicaof" not in new.file.read_text()
        for node in (old, other):
            assert f"replicaof 127.0.0.1 {new.port}" in node.file.read_text()
            node.restart()
        new.restart()
        assert new.role == "master"
        assert_same(new, other, old)


@pytest.mark.skipif(PROGRAM != "tidelog", reason="reads tidelog's documentation")
def test_sentinels_with_a_user_of_their_own(tmp_path: Path) -> None:
    """With the rules in docs/acl.md, and replicas with theirs."""
    text = (Path(__file__).parents[2] / "docs" / "acl.md").read_text()
    rules = {each.split()[0]: each for each in re.findall(r"`([^`]*\+ping[^`]*)`", text)}
    assert list(rules) == ["+psync", "allchannels"]
    with cluster(PROGRAM) as made:
        leader = made.node(file=True, masteruser="link", masterauth="secret")
        replica = made.node(of=leader.port, file=True, start=False, masteruser="link", masterauth="secret")
        for node in (leader, replica):
            users = f"user link on >secret {rules['+psync']}\nuser watch on >secret {rules['allchannels']}\n"
            node.file.write_text(node.file.read_text() + users)
        leader.kill()
        leader.start()
        replica.start()
        wait_until(lambda: in_sync(leader, replica), "a first sync")
        login = f"sentinel auth-user {SERVICE} watch\nsentinel auth-pass {SERVICE} secret\n"
        with sentinels(tmp_path, leader.port, 1, login) as watch:
            watch.wait_until_they_know(replicas=1)
            names = {client["user"] for client in leader.redis.client_list()}
            assert names >= {"watch", "link"}
            leader.kill()
            wait_until(lambda: watch.leader_port() == replica.port, "the replica leads", 30)
            wait_until(lambda: replica.role == "master", "the replica leads")
            leader.start()
            wait_until(lambda: in_sync(replica, leader), "the old leader follows", 30)
            assert leader.info()["master_port"] == replica.port
            wait_until(lambda: f"replicaof 127.0.0.1 {replica.port}" in leader.file.read_text(), "CONFIG REWRITE")
            denials = {row["object"] for node in (leader, replica) for row in node.redis.acl_log()}
            assert denials <= {"script|kill"}, denials
