"""Rows are staged by any number of Stagers and appended by a Publisher, once, whatever is lost on the way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import hiredis
import pytest

from tests.replication.proxy import Proxy
from tidelog import Client, ConflictError, Published, StaleEpochError
from tidelog.client import publish
from tidelog.client.publish import Publisher, StagedRows, Stager
from tidelog.testing import Server, free_port
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError

HOUR = 3_600_000


@pytest.fixture
def access(tidelog_server: Server) -> Access:
    return Access((tidelog_server.url,), retry_ms=1)


@pytest.fixture
def proxy(tidelog_server: Server) -> Iterator[Proxy]:
    with Proxy(free_port(), tidelog_server.port) as proxy:
        yield proxy


def through(proxy: Proxy) -> Access:
    return Access((f"redis://127.0.0.1:{proxy.port}",), retry_ms=1)


def part(key: str, *numbers: int) -> StagedRows:
    packed = hiredis.pack_command(tuple(numbers))  # type: ignore[arg-type]  # any length will do
    return StagedRows(key.encode(), (b"n",), len(numbers), packed[packed.index(b"\r\n") + 2 :])


def numbers(client: Client, key: str) -> list[int]:
    return [int(entry["n"]) for entry in client.trange(key)]


def staged(access: Access, prefix: str, *parts: StagedRows) -> list[str]:
    stager = Stager(access, "writer", prefix, HOUR)
    stager.stage(parts)
    stager.finish()
    return stager.names


def stages(client: Client) -> int:
    """How many stages the server holds."""
    return int(client.redis.info("streams")["stages"])


def test_rows_are_invisible_until_they_are_published_in_order(client: Client, access: Access) -> None:
    first = Stager(access, "writer", "job", HOUR)
    second = Stager(access, "writer", "job", HOUR)
    second.stage([part("a", 10, 11)])
    first.stage([part("a", 1, 2), part("b", 3)])
    first.stage([part("a", 4)])
    assert {row["name"] for row in client.redis.client_list()} >= {"writer"}
    second.finish()
    first.finish()
    assert (first.rows, second.rows) == (4, 2)
    assert all(name.startswith("job:") for name in first.names + second.names)
    assert (client.tlen("a"), client.tlen("b")) == (0, 0)
    with Publisher(access, "publisher") as publisher:
        assert publisher.publish("job", 1, first.names + second.names) == Published(True, 6)
        assert "publisher" in {row["name"] for row in client.redis.client_list()}
        assert publisher.publish("job", 1, first.names + second.names) == Published(False, 0)
    assert numbers(client, "a") == [1, 2, 4, 10, 11]
    assert numbers(client, "b") == [3]
    assert stages(client) == 0


def test_a_stager_on_a_connection_of_its_callers_leaves_it_open(client: Client, access: Access) -> None:
    servers = LeaderConnection(access, "mine")
    wire = servers.leader()
    names = []
    for _ in range(2):
        stager = Stager(access, "unused", "job", 60_000, servers=servers)
        stager.stage([StagedRows(b"t", (b"n",), 1, b"$1\r\n7\r\n")])
        stager.finish()
        names += stager.names
    assert servers.leader() is wire
    assert wire.ask("PING") == b"PONG"
    assert client.tpublish("fence", 1, *names).entries == 2
    servers.close()


def test_many_chunks_keep_their_order(client: Client, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "CHUNK", 3)
    names = staged(access, "job", *(part("a", n) for n in range(50)))
    assert len(names) == 17
    with Publisher(access, "publisher") as publisher:
        publisher.publish("job", 1, names)
    assert numbers(client, "a") == list(range(50))


@pytest.mark.parametrize("after", [0, 3, 7, 60], ids=lambda after: f"{after} bytes of replies")
def test_what_has_no_reply_is_staged_again(
    client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after: int
) -> None:
    monkeypatch.setattr(publish, "CHUNK", 3)
    stager = Stager(through(proxy), "writer", "job", HOUR)
    stager.stage([part("a", n) for n in range(12)])
    proxy.down.cut(after)
    stager.stage([part("a", n) for n in range(12, 60)])
    stager.finish()
    assert proxy.down.fired.is_set()
    assert "staging rows again, since there was no reply" in caplog.text
    assert stages(client) > len(stager.names), "what was staged under the old names is still there"
    with Publisher(through(proxy), "publisher") as publisher:
        publisher.publish("job", 1, stager.names)
    assert numbers(client, "a") == list(range(60))


def test_a_publish_without_a_reply_is_sent_again_and_skipped(client: Client, access: Access, proxy: Proxy) -> None:
    names = staged(access, "job", part("a", 1, 2))
    with Publisher(through(proxy), "publisher") as publisher:
        publisher.drop(["no such stage"])  # connects
        proxy.down.cut(0)
        assert publisher.publish("job", 1, names) == Published(False, 0)
    assert proxy.connections == 2
    assert numbers(client, "a") == [1, 2]


def test_refused_rows_and_epochs(client: Client, access: Access) -> None:
    client.redis.set("s", "no stream")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        staged(access, "job", part("s", 1))
    with Publisher(access, "publisher") as publisher:
        publisher.publish("job", 5, staged(access, "job", part("a", 1)))
        late = staged(access, "job", part("a", 2))
        with pytest.raises(StaleEpochError, match="Epoch 4 of fence 'job'"):
            publisher.publish("job", 4, late)
        with pytest.raises(ReplyError, match=r"^NOSTAGE No such stage 'other'"):
            publisher.publish("job", 6, [*late, "other"])
        with pytest.raises(ValueError, match="nothing to publish"):
            publisher.publish("job", 6, [])
        assert numbers(client, "a") == [1]
        assert publisher.publish("job", 6, late, "two").now
        assert not publisher.publish("job", 6, late, "two").now
        with pytest.raises(ConflictError, match="CHECK 'two', not 'three'"):
            publisher.publish("job", 6, late, "three")
    assert numbers(client, "a") == [1, 2]


def test_a_part_as_a_command() -> None:
    reader = hiredis.Reader()
    reader.feed(part("a", 1, 22).command("name", 77_000))
    words = reader.gets()
    assert words == [b"TSTAGE", b"name", b"77000", b"a", b"FIELDS", b"1", b"n", b"VALUES", b"1", b"22"]
    assert reader.gets() is False


def test_dropping_never_fails(
    client: Client, access: Access, tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    names = staged(access, "job", part("a", 1)) + staged(access, "job", part("a", 2))
    with Publisher(access, "publisher") as publisher:
        publisher.drop([])
        publisher.drop(names)
        publisher.drop(names)
        assert stages(client) == 0
        assert not caplog.records
        tidelog_server.stop()
        publisher.drop(names)
    assert "stages were not dropped" in caplog.text


def test_evicting(client: Client, access: Access) -> None:
    for key in ("a", "b"):
        client.tmappend(key, ["n"], [(n,) for n in range(10)])
    with Publisher(access, "publisher") as publisher:
        publisher.evict([b"a", "b"], count=2)
        assert (numbers(client, "a"), numbers(client, "b")) == ([8, 9], [8, 9])
        publisher.evict(["a"], ms=HOUR)
        assert client.tlen("a") == 2
        publisher.evict([], count=0)
        with pytest.raises(TypeError, match="give one of count, ms, before and bytes"):
            publisher.evict(["a"])
        client.redis.set("s", "no stream")
        with pytest.raises(ReplyError, match="WRONGTYPE"):
            publisher.evict(["a", "s"], count=1)


def test_no_server() -> None:
    access = Access(("redis://127.0.0.1:1",), retries=1, retry_ms=1)
    with pytest.raises(UnreachableError, match="in 2 attempts"):
        staged(access, "job", part("a", 1))
    with Publisher(access, "publisher") as publisher, pytest.raises(UnreachableError, match="in 2 attempts"):
        publisher.publish("job", 1, ["s"])


# -- jobs that are not repeated -----------------------------------------------------------------------------------
def clock(monkeypatch: pytest.MonkeyPatch, *moments: int) -> Iterator[int]:
    """The times that jobs read, one after the other."""
    left = iter(moments)
    monkeypatch.setattr("tidelog.client.publish.time", SimpleNamespace(time_ns=lambda: next(left)))  # of it alone
    return left


def test_two_jobs_in_one_nanosecond(client: Client, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [staged(access, "job", part("a", number)) for number in (1, 2)]
    now = 1_700_000_000_000_000_000
    left = clock(monkeypatch, now, now, now, now + 1)
    for names in jobs:
        with Publisher(access, "publisher") as publisher:
            publisher.publish_once("jobs", names)
    assert numbers(client, "a") == [1, 2]
    assert next(left, None) is None, "the second job reads the clock until it has an epoch of its own"
    claims = set(client.redis.scan_iter("jobs:*"))
    assert claims == {f"jobs:{socket.gethostname()}:{epoch}".encode() for epoch in (now, now + 1)}
    assert all(0 < client.redis.pttl(claim) <= publish.CLAIM_MS for claim in claims)


def test_a_job_that_was_overtaken_takes_a_later_epoch(
    client: Client, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = staged(access, "job", part("a", 1)), staged(access, "job", part("a", 2))
    clock(monkeypatch, 20, 10, 30)
    with Publisher(access, "publisher") as publisher:
        publisher.publish_once("jobs", fast)
        publisher.publish_once("jobs", slow)
    assert numbers(client, "a") == [2, 1]


def test_a_machine_of_the_same_name_whose_clock_is_ahead(
    client: Client, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = staged(access, "job", part("a", 1)), staged(access, "job", part("a", 2))
    clock(monkeypatch, 1000, *range(10, 20))
    with Publisher(access, "publisher") as publisher:
        publisher.publish_once("jobs", ahead)
        publisher.publish_once("jobs", behind)
    assert numbers(client, "a") == [1, 2]


def test_a_job_without_a_reply_that_was_overtaken_then(
    client: Client, access: Access, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are published, its second TPUBLISH is stale, and its stages are gone: it is done."""
    names, others = staged(access, "job", part("a", 1)), staged(access, "job", part("a", 2))
    clock(monkeypatch, 10, 20, 30)
    with Publisher(through(proxy), "publisher") as publisher, Publisher(access, "publisher") as other:
        claimed = publisher.claim_epoch

        def claim_and_cut(fence: str) -> int:
            epoch = claimed(fence)
            if epoch == 10:
                proxy.down.cut(0)
            return epoch

        monkeypatch.setattr(publisher, "claim_epoch", claim_and_cut)
        # Of this module alone: a thread of the process that sleeps would publish too.
        slept = SimpleNamespace(sleep=lambda _: other.publish_once("jobs", others))
        monkeypatch.setattr("tidelog.transport.leader.time", slept)
        publisher.publish_once("jobs", names)
    assert numbers(client, "a") == [1, 2]
