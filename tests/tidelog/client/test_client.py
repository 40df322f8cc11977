"""Client and AsyncClient against a real server, each in RESP2 and RESP3, by the same tests."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
import redis.asyncio

from tidelog import (
    MISSING,
    AsyncClient,
    Client,
    ConflictError,
    NoGroupError,
    NoStageError,
    Published,
    StaleEpochError,
    StreamId,
    StreamPolicy,
)
from tidelog.client import calls
from tidelog.testing import Server


class Driven:
    """An AsyncClient with the methods of a Client, so that the same test serves both."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return [item async for item in result] if inspect.isasyncgen(result) else await result

        return lambda *args, **kwargs: self._runner.run(call(*args, **kwargs))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


KINDS: dict[str, Callable[..., Any]] = {"sync": Client, "asyncio": Driven}


@pytest.fixture(params=[(kind, proto) for kind in KINDS for proto in (2, 3)], ids=lambda p: f"{p[0]}-resp{p[1]}")
def client(request: pytest.FixtureRequest, tidelog_server: Server) -> Iterator[Any]:
    kind, proto = request.param
    made = KINDS[kind](tidelog_server.url, protocol=proto, socket_timeout=5)
    yield made
    made.close()


def numbers(entries: list[Any]) -> list[int]:
    return [int(entry["n"]) for entry in entries]


def fill(client: Any, key: str, count: int) -> list[StreamId]:
    return [client.tappend(key, {"n": n}) for n in range(count)]


def test_append_and_read_back(client: Any) -> None:
    before = int(time.time() * 1000) - 1
    first = client.tappend("k", {"sensor": "01", "temperature": 35.6})
    second = client.tappend("k", [("tag", "a"), ("tag", b"\xff\x00\r\n"), ("", "")])
    assert isinstance(first, StreamId)
    assert before <= first.ms <= time.time() * 1000
    assert first < second
    one, two = client.trange("k")
    assert (one.id, two.id) == (first, second)
    assert one.text() == {"sensor": "01", "temperature": "35.6"}
    assert two.pairs == [(b"tag", b"a"), (b"tag", b"\xff\x00\r\n"), (b"", b"")]


def test_ranges(client: Any) -> None:
    ids = fill(client, "k", 5)
    assert numbers(client.trange("k", ids[1], ids[3])) == [1, 2, 3]
    assert numbers(client.trange("k", f"({ids[1]}", f"({ids[3]}")) == [2]
    assert numbers(client.trange("k", count=2)) == [0, 1]
    assert numbers(client.trange("k", ids[0].time, ids[4].time)) == [0, 1, 2, 3, 4]
    assert numbers(client.trevrange("k", count=2)) == [4, 3]
    assert numbers(client.trevrange("k", ids[2], ids[1])) == [2, 1]
    assert client.trange("missing") == []
    assert client.tcount("k", f"({ids[0]}") == 4
    assert client.tlen("k") == 5
    assert client.tseek("k", ids[0], 2) == ids[2]
    assert client.tseek("k", ids[0], 99) == ids[4]
    assert client.tseek("k", ids[4], 1) is None


def test_pages_go_through_a_range_once(client: Any) -> None:
    client.tmappend("k", ["n"], [(n,) for n in range(25)])
    pages = list(client.pages("k", size=10))
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [n for page in pages for n in numbers(page)] == list(range(25))
    assert list(client.pages("missing")) == []


def test_many_at_once(client: Any) -> None:
    span = client.tmappend("k", ["n", "x"], [(0, "a"), (1, b"\xff")])
    entries = client.trange("k")
    assert (entries[0].id, entries[1].id) == span
    assert entries[1].pairs == [(b"n", b"1"), (b"x", b"\xff")]


def test_staging_and_publishing(client: Any) -> None:
    assert client.tstage("task-1", 60_000, "k", ["n"], [(0,), (1,)]) == 2
    assert client.tstage("task-1", 60_000, "k", ["n"], [(2,)]) == 3
    assert client.tstage("task-2", 60_000, "other", ["n"], [(9,)]) == 1
    assert client.trange("k") == []
    assert client.tpublish("query", 7, "task-1", "task-2") == Published(True, 4)
    assert client.tpublish("query", 7, "task-1", "task-2") == Published(False, 0)
    assert numbers(client.trange("k")) == [0, 1, 2]
    assert numbers(client.trange("other")) == [9]
    with pytest.raises(StaleEpochError, match="Epoch 6 of fence 'query'"):
        client.tpublish("query", 6, "task-3")
    with pytest.raises(NoStageError, match="No such stage 'task-3'"):
        client.tpublish("query", 8, "task-3")
    assert client.tstage("task-3", 0, "k", ["n"], [(3,)]) == 1
    assert client.tdrop("task-3", "task-4") == 1
    for check, now in (("ten", True), ("ten", False), ("", False)):
        client.tstage("task-5", 0, "k", ["n"], [(5,)])
        assert client.tpublish("query", 8, "task-5", check=check).now == now
    with pytest.raises(ConflictError, match="was published with CHECK 'ten', not 'six'"):
        client.tpublish("query", 8, "task-5", check="six")
    assert client.tdrop() == 0


def test_eviction(client: Any) -> None:
    fill(client, "k", 5)
    client.tappev("k", {"n": 5}, count=3)
    assert numbers(client.trange("k")) == [3, 4, 5]
    assert client.ttrim("k", count=1) == 2
    assert client.ttrim("k", ms=3_600_000) == 0
    info = client.tinfo("k")
    assert (info.length, info.entries_added, info.evicted, info.groups) == (1, 6, 5, 0)
    assert info.first == info.last
    assert info.evicted_to < info.first


def test_retention_policy(client: Any) -> None:
    fill(client, "k", 5)
    policy = StreamPolicy(count=3, ms=3_600_000, bytes=10_000_000, groups=True, limit=4, exact=True)
    assert client.tcfg("k") is None
    assert client.tcfg_retain("k", policy, dry=True) == 1
    assert client.tlen("k") == 5
    assert client.tcfg_retain("k", policy) == 1
    assert client.tcfg("k") == client.tinfo("k").retain == policy
    assert client.tcfg_retain("k", None) == 0
    assert client.tcfg("k") is client.tinfo("k").retain is None
    with pytest.raises(redis.ResponseError, match="no such key"):
        client.tcfg("missing")
    with pytest.raises(redis.ResponseError, match="needs a limit"):
        client.tcfg_retain("k", StreamPolicy())
    client.tcfg_tier("k", bytes=7)
    assert client.tinfo("k").tier == "BYTES 7"
    client.tcfg_tier("k", ms=5)
    assert client.tinfo("k").tier == "AGE 5"
    client.tcfg_tier("k")
    assert client.tinfo("k").tier is None
    with pytest.raises(ValueError, match="exclude each other"):
        client.tcfg_tier("k", ms=5, bytes=7)
    client.tappev("k", {"n": 6}, bytes=1)
    assert client.ttrim("k", bytes=0) == client.tlen("k") == 0


def test_delayed_entries(client: Any) -> None:
    token = client.tdelay("k", {"n": 1}, ms=3_600_000)
    assert client.tdelay("k", {"id": 5, "n": 2}, at=datetime(2100, 1, 1, tzinfo=UTC)) != token
    assert client.tdelay("k", {"n": 3}, ms=0, token="t") == client.tdelay("k", {"n": 3}, ms=0, token="t") == "t"
    [entry] = client.tread("k", "0", block=10_000)
    assert entry.fields == {b"n": b"3"}
    cursor, [first] = client.tdelay_list("k", count=1)
    assert (first.token, first.fields) == (token, {b"n": b"1"})
    cursor, [second] = client.tdelay_list("k", cursor)
    assert (cursor, second.due, second.fields) == ("0", 4_102_444_800_000, {b"id": b"5", b"n": b"2"})
    assert client.tdelay_count("k") == client.tinfo("k").delayed == 2
    assert client.tdelay_cancel("k", token) is True
    assert client.tdelay_cancel("k", token) is False
    with pytest.raises(TypeError, match="give one of ms and at"):
        client.tdelay("k", {"n": 1})


def test_read_after_an_id_and_with_info(client: Any) -> None:
    ids = fill(client, "k", 3)
    batch = client.tread("k", ids[0], with_info=True)
    assert numbers(batch.entries) == [1, 2]
    assert batch.info == (ids[0], ids[2])
    assert batch.last_id == ids[2]
    assert client.tread("k", ids[2]) == []
    empty = client.tread("missing", count=0, with_info=True)
    assert (empty, empty.info) == ([], (None, StreamId(0)))


def test_a_gap_is_marked(client: Any) -> None:
    ids = fill(client, "k", 3)
    client.ttrim("k", count=1)
    batch = client.tread("k", ids[0])
    assert batch[0] is MISSING
    assert numbers(batch.entries) == [2]


def test_group_retry_and_acknowledgement(client: Any) -> None:
    ids = fill(client, "k", 3)
    group: dict[str, Any] = {"group": "g", "ttl": 60_000, "retry": 60_000, "expire": 600_000}
    assert numbers(client.tread("k", "0", 2, **group)) == [0, 1]
    assert numbers(client.tread("k", count=2, **group)) == [2]
    assert client.tread("k", count=2, **group) == []
    summary = client.tpending("k", "g")
    assert (summary.count, summary.lowest, summary.highest) == (3, ids[0], ids[2])
    rows = client.tpending_range("k", "g")
    assert [(row.id, row.deliveries) for row in rows] == [(i, 1) for i in ids]
    assert summary.next_due == min(row.due for row in rows)
    assert all(row.first_delivered < row.due < row.expire for row in rows)

    assert client.tack("k", "g", ids[0], "1.1") == 1
    assert client.tack("k", "g") == 0
    assert client.tnack("k", "g", ids[1]) == 1
    assert client.tnack("k", "g", ids[2], delay=120_000) == 1
    again = client.tread("k", **group)
    assert [entry.id for entry in again] == [ids[1]]
    assert client.ttouch("k", "g", 30_000, *again) == 1
    assert [row.deliveries for row in client.tpending_range("k", "g", ids[1], ids[1])] == [2]

    (listed,) = client.tgroup_list("k")
    assert (listed.name, listed.offset, listed.ttl, listed.pending) == (b"g", ids[2], 60_000, 2)
    assert listed.redelivered == 1
    client.tgroup_setid("k", "g", ids[0])
    assert numbers(client.tread("k", count=1, **group)) == [1]
    assert client.tgroup_destroy("k", "g") is True
    assert client.tgroup_destroy("k", "g") is False
    assert client.tgroup_list("k") == []


def test_dead_letters(client: Any) -> None:
    fill(client, "k", 1)
    options: dict[str, Any] = {"group": "g", "retry": 1, "max_deliveries": 1, "deadletter": "dead"}
    assert len(client.tread("k", "0", **options)) == 1
    batch = client.tread("dead", "0", block=5000)
    assert batch[0]["n"] == b"0"
    assert batch[0]["__reason"] == b"maxdeliveries"


def test_errors_have_their_classes(client: Any) -> None:
    client.tappend("k", {"a": 1})
    with pytest.raises(NoGroupError):
        client.tpending("k", "nobody")
    with pytest.raises(redis.ResponseError, match="no such key"):
        client.tinfo("missing")
    with pytest.raises(redis.ResponseError, match="Invalid stream ID"):
        client.trange("k", "nonsense")


def test_blocking_read_outlasts_the_socket_timeout(tidelog_server: Server) -> None:
    for kind in KINDS.values():
        impatient = kind(tidelog_server.url, socket_timeout=0.1)
        started = time.monotonic()
        batch = impatient.tread("k", block=400)
        assert batch.timed_out
        assert time.monotonic() - started >= 0.4
        with ThreadPoolExecutor(1) as pool, tidelog_server.client() as writer:
            endless = pool.submit(impatient.tread, "k", block=0)
            wait_for_blocked(writer, 1)
            time.sleep(0.3)  # three times the socket timeout, in which nothing may happen
            assert not endless.done()
            writer.tappend("k", {"n": 7})
            assert numbers(endless.result(5)) == [7]
        impatient.close()


def test_other_reads_keep_the_socket_timeout_and_late_replies_are_dropped(tidelog_server: Server) -> None:
    for kind in KINDS.values():
        impatient = kind(tidelog_server.url, socket_timeout=0.3)
        impatient.tappend("k", {"n": 1})
        os.kill(tidelog_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError):
                impatient.tlen("k")
        finally:
            os.kill(tidelog_server.pid, signal.SIGCONT)
        assert impatient.trange("missing") == []  # not the late answer to TLEN
        impatient.close()


def test_a_blocked_reader_learns_that_its_group_has_ended(tidelog_server: Server) -> None:
    with tidelog_server.client() as reader, tidelog_server.client() as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.tread, "k", block=0, group="g")
        wait_for_blocked(other, 1)
        assert other.tgroup_destroy("k", "g")
        with pytest.raises(NoGroupError):
            waiting.result(5)


def test_threads_share_a_client(tidelog_server: Server) -> None:
    with tidelog_server.client() as client, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.tread, "k", block=0, count=1, group="g") for _ in range(3)]
        wait_for_blocked(client, 3)
        client.tmappend("k", ["n"], [(n,) for n in range(3)])
        assert sorted(numbers(future.result(5))[0] for future in waiting) == [0, 1, 2]


def test_a_cancelled_read_leaves_the_client_usable(tidelog_server: Server) -> None:
    async def scenario() -> list[int]:
        async with AsyncClient(tidelog_server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.tread("k", block=0)
            await client.tappend("k", {"n": 3})
            return numbers(await client.trange("k"))

    assert asyncio.run(scenario()) == [3]


def test_a_client_finds_a_restarted_server_again(tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.tappend("k", {"n": 1})
        tidelog_server.restart()
        assert numbers(client.trange("k")) == [1]


def test_an_async_client_finds_a_restarted_server_again(tidelog_server: Server) -> None:
    async def scenario() -> list[int]:
        async with AsyncClient(tidelog_server.url) as client:
            await client.tappend("k", {"n": 1})
            await asyncio.to_thread(tidelog_server.restart)
            return numbers(await client.trange("k"))

    assert asyncio.run(scenario()) == [1]


def test_other_redis_commands(tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.redis.set("lock", "me", nx=True, px=5000)
        assert client.redis.get("lock") == b"me"


class Rude:
    """A server that takes a command and closes the connection: the client can't know whether it was executed."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}?protocol=2"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                while data := connection.recv(4096):
                    if data == b"STOP":
                        return
                    self.seen.append(data)
                    if b"TAPPEND" in data:
                        break
                    connection.sendall(b"+OK\r\n" * data.count(b"*"))

    def close(self) -> None:
        with socket.create_connection(self._listener.getsockname()) as last:
            last.sendall(b"STOP")
            self._thread.join()
        self._listener.close()


def test_an_append_whose_reply_is_lost_is_not_sent_again() -> None:
    for kind in KINDS.values():
        rude = Rude()
        made = kind(rude.url)
        with pytest.raises(redis.ConnectionError):
            made.tappend("k", {"n": 1})
        made.close()
        rude.close()
        assert sum(b"TAPPEND" in data for data in rude.seen) == 1


def test_calls_together_on_one_connection(client: Any) -> None:
    entry_id, replicas, none, both = client.together(
        calls.tappend("k", {"n": 1}), calls.wait(0), calls.tack("k", "g"), calls.waitaof(1, 0)
    )
    assert (client.trange("k")[0].id, replicas, none, both) == (entry_id, 0, 0, (1, 0))
    with pytest.raises(NoGroupError):
        client.together(calls.tpending("k", "nobody"), calls.tappend("k", {"n": 2}))
    assert client.tlen("k") == 2, "the others are carried out"
    assert client.together() == []
    assert (client.wait(1, 20), client.wait(0), client.waitaof(0, 1, 20)) == (0, 0, (1, 0))


def test_over_the_connections_of_another_client(tidelog_server: Server) -> None:
    with redis.Redis.from_url(tidelog_server.url, decode_responses=True) as other:
        client = Client.over(other)
        entry_id = client.tappend("k", {"n": b"\xff"})
        assert (client.redis, client.trange("k")[0].pairs) == (other, [(b"n", b"\xff")])
        assert client.together(calls.tlen("k"), calls.tseek("k", "0", 1)) == [1, entry_id]

    async def asynchronous() -> None:
        async with redis.asyncio.Redis.from_url(tidelog_server.url) as other:
            assert await AsyncClient.over(other).tlen("k") == 1

    asyncio.run(asynchronous())


def test_both_clients_have_every_call_with_its_signature() -> None:
    from tidelog.client import calls as module

    built = {
        name: function
        for name, function in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(function)
        and str(inspect.signature(function).return_annotation).startswith("Call[")
    }
    assert len(built) == 35
    for cls in (Client, AsyncClient):
        for name, function in built.items():
            method = getattr(cls, name)
            signature = inspect.signature(method)
            assert list(signature.parameters)[1:] == list(inspect.signature(function).parameters)
            assert inspect.iscoroutinefunction(method) == (cls is AsyncClient)
            assert method.__doc__


def wait_for_blocked(client: Client, readers: int) -> None:
    end = time.monotonic() + 5
    while client.redis.info("clients")["blocked_clients"] != readers:
        assert time.monotonic() < end, f"there are never {readers} blocked readers"
        time.sleep(0.005)
