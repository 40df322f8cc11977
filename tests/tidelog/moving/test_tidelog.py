"""From Redis into tidelog and back, and from one tidelog-server to another."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.tidelog.moving.movekit import STREAMS, Peer, delivered, fill, moved, start, state, tidelog
from tests.tidelog.moving.test_follow import following, programs, reader, writer
from tests.waiting import eventually
from tidelog import StreamPolicy
from tidelog.moving.groups import SLACK
from tidelog.testing import Server, running_server


@pytest.fixture
def tide(tidelog_server: Server) -> Iterator[Any]:
    """A tidelog-server as a peer: url, port, client."""
    peer = Tide(tidelog_server)
    yield peer
    peer.client.close()


class Tide(Peer):
    """A tidelog-server that is asked with redis-py."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = server.port
        self.url = server.url
        self.client = redis.Redis(port=server.port, protocol=2)


def test_into_tidelog(source: Peer, tide: Tide) -> None:
    fill(source.client)
    report = moved(source.url, tide.url)
    assert report["verdict"] == "same", report
    for key in STREAMS:
        assert state(tide.client, key) == state(source.client, key), key
    mine, its = delivered(source.client, "orders"), delivered(tide.client, "orders")
    assert its == {name: pytest.approx(time, abs=SLACK) for name, time in mine.items()}
    assert tide.client.pexpiretime("lock") == 4_000_000_000_123
    tide.server.kill()
    tide.server.start()
    for key in STREAMS:
        assert state(tide.client, key) == state(source.client, key), key


def test_and_back(source: Peer, target: Peer, tide: Tide) -> None:
    fill(source.client)
    moved(source.url, tide.url)
    output = tidelog("export", target.url, "--url", tide.url, "--json").stdout
    assert json.loads(output)["verdict"] == "same", output
    for key in STREAMS:
        assert state(target.client, key) == state(source.client, key), key


def test_a_second_time_with_resume_changes_nothing(source: Peer, tide: Tide) -> None:
    fill(source.client)
    moved(source.url, tide.url)
    assert sum(each["copied"] for each in moved(source.url, tide.url, "--resume")["streams"]) == 0


def test_from_tidelog_to_tidelog(source: Peer, tide: Tide) -> None:
    fill(source.client)
    moved(source.url, tide.url)
    with running_server() as other:
        end = Tide(other)
        try:
            assert moved(tide.url, other.url)["verdict"] == "same"
            for key in STREAMS:
                assert state(end.client, key) == state(source.client, key), key
        finally:
            end.client.close()


def test_delayed_entries_are_reported_for_redis(target: Peer, tide: Tide) -> None:
    with tide.server.client() as here:
        here.tappend("s", {"n": 1})
        here.tdelay("s", {"n": 2}, ms=3_600_000)
    report = json.loads(tidelog("export", target.url, "--url", tide.url, "--json").stdout)
    (note,) = report["notes"]
    assert note.startswith("not copied: 1 delayed entry of the source. Keep the source")


def test_retention_policies(target: Peer, tide: Tide) -> None:
    """They are set last: until then, the target would evict what the source still has."""
    policy = StreamPolicy(count=2, ms=3_600_000, groups=True, limit=50, exact=True)
    with running_server() as other, tide.server.client() as here, other.client() as there:
        for key in ("kept", "plain"):
            here.tmappend(key, ["n"], [[n] for n in range(20)])
            here.tread(key, "0", 5, group="readers")
        here.tcfg_retain("kept", policy)
        here.tcfg_tier("kept", bytes=70)
        eventually(lambda: here.tlen("kept") == 15)
        assert moved(tide.url, other.url)["verdict"] == "same"
        assert (there.tcfg("kept"), there.tcfg("plain")) == (policy, None)
        assert [there.tlen(key) for key in ("kept", "plain")] == [15, 20]
        assert [there.tinfo(key).tier for key in ("kept", "plain")] == ["BYTES 70", None]
        for key in ("kept", "plain"):
            there.tcfg_retain(key, StreamPolicy(count=100))
            there.tcfg_tier(key, ms=5)
            here.tappend(key, {"n": 20})
        assert moved(tide.url, other.url, "--resume")["verdict"] == "same"
        assert (there.tcfg("kept"), there.tcfg("plain")) == (policy, None)
        assert [there.tinfo(key).tier for key in ("kept", "plain")] == ["BYTES 70", None]
        there.redis.execute_command("ACL", "SETUSER", "in", "on", ">secret", "~*", "+@all", "-tcfg")
        report = moved(tide.url, other.url.replace("redis://", "redis://in:secret@"), "--replace")
        assert report["verdict"] == "same"
        (note,) = report["notes"]
        assert note.startswith("the retention policies were not copied: ")
        assert "NOPERM" in note
    output = tidelog("export", target.url, "--url", tide.url).output
    assert "1 stream of the source had a retention policy, which Redis" in output


def test_what_only_tidelog_has(target: Peer, tide: Tide) -> None:
    with tide.server.client() as client:
        for n in range(6):
            client.tappend("s", {"n": n})
        client.tread("s", 0, 4, group="readers", ttl=600_000, retry=60_000)
        ids = [str(entry.id).replace(".", "-").encode() for entry in client.trange("s")]
    output = tidelog("export", target.url, "--url", tide.url).output
    assert "1 group of the source would expire without readers" in output
    rows = target.client.xpending_range("s", "readers", "-", "+", 10)
    assert [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows] == [
        (at, b"", 1) for at in ids[:4]
    ]  # fmt: skip
    assert [at for at, _ in target.client.xrange("s")] == ids
    (group,) = target.client.xinfo_groups("s")
    assert group["last-delivered-id"] == ids[3]


@pytest.mark.parametrize("into", [True, False])
def test_a_service_changes_over_and_loses_nothing(source: Peer, tide: Tide, into: bool) -> None:
    old, new = (source, tide) if into else (tide, source)
    sent: list[bytes] = []
    done: list[bytes] = []
    stop = threading.Event()
    old.client.xgroup_create("a", "workers", "0", mkstream=True)
    service = [writer(old, key, stop, sent) for key in ("a", "bounded")]
    service += [reader(old, "a", name, stop, done) for name in ("ann", "bob")]
    with programs(stop, *service) as stopped:
        eventually(lambda: len(sent) > 200)
        with following(old, new) as move:
            eventually(lambda: len(sent) > 600)
            move.rounds(3)
            stopped()
            outcome = move.end()
    assert outcome.verdict == "same", outcome.to_dict()
    for key in ("a", "bounded"):
        assert state(new.client, key) == state(old.client, key)
    for name in ("ann", "bob"):
        for _, rows in new.client.xreadgroup("workers", name, {"a": "0"}):
            done += [fields[b"n"] for _, fields in rows]
    for _, rows in new.client.xreadgroup("workers", "ann", {"a": ">"}) or []:
        done += [fields[b"n"] for _, fields in rows]
    assert Counter(done) == Counter(value for value in sent if not value.startswith(b"bounded"))


def test_a_target_that_is_killed(source: Peer, tide: Tide) -> None:
    entries = 8000
    pipeline = source.client.pipeline(transaction=False)
    for n in range(1, entries + 1):
        pipeline.xadd("s", {"n": n}, id=f"{n}-0")
    pipeline.execute()
    with start("import", source.url, "--url", tide.url, "--page", "100") as process:
        eventually(lambda: tide.client.exists("s") and tide.client.xlen("s") > entries // 10)
        tide.server.kill()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"--resume" in errors
    tide.server.start()
    assert 0 < tide.client.xlen("s") < entries
    report = moved(source.url, tide.url, "--resume")
    assert report["verdict"] == "same"
    assert state(tide.client, "s") == state(source.client, "s")


def test_a_copy_that_is_killed(source: Peer, tide: Tide) -> None:
    entries = 8000
    pipeline = source.client.pipeline(transaction=False)
    for n in range(1, entries + 1):
        pipeline.xadd("s", {"n": n}, id=f"{n}-0")
    pipeline.execute()
    with start("import", source.url, "--url", tide.url, "--page", "100") as process:
        eventually(lambda: tide.client.exists("s") and tide.client.xlen("s") > entries // 10)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert 0 < tide.client.xlen("s") < entries
    assert moved(source.url, tide.url, "--resume")["verdict"] == "same"
    assert state(tide.client, "s") == state(source.client, "s")


def test_the_permissions_that_the_docs_name_are_enough(source: Peer, tide: Tide) -> None:
    text = (Path(__file__).parents[3] / "docs" / "moving.md").read_text()
    rules = {line.split()[2]: line.split()[3:] for line in text.splitlines() if line.strip().startswith("ACL SETUSER")}
    fill(source.client)
    for name, words in rules.items():
        tide.client.execute_command("ACL", "SETUSER", name, *words)
    into, out = (f"redis://{name}:secret@127.0.0.1:{tide.port}" for name in ("mover-in", "mover-out"))
    try:
        assert moved(source.url, into)["verdict"] == "same"
        source.client.flushall()
        notes = moved(out, source.url)["notes"]
        assert ["is not known" in note for note in notes] == [True, True]
        tide.client.execute_command("ACL", "SETUSER", "mover-out", "+tgroup|list", "+tdelay")
        assert moved(out, source.url, "--replace")["notes"] == []
        tide.client.execute_command("ACL", "SETUSER", "mover-in", "-xclaim")
        output = tidelog("import", source.url, "--url", into, "--replace", code=1).output
        assert "refuses XCLAIM: NOPERM" in output
        assert "secret" not in output
    finally:
        tide.client.execute_command("ACL", "DELUSER", "mover-in", "mover-out")
