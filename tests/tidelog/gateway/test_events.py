"""Event streams: resuming, sharing a connection, and what ends them."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from tests.tidelog.gateway.gatewaykit import Caller, Events, add_user, ids_until_end, visit
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.entries import Batch, Entry, Span, StreamId
from tidelog.gateway import events, tails, users
from tidelog.gateway.application import GatewayServer
from tidelog.gateway.counts import GatewayCounts
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.frames import PART, frame
from tidelog.gateway.users import NAME
from tidelog.operating import httpaddress
from tidelog.testing import Server, running_server

S = "/v1/streams/chat"


def followers(client: Client) -> int:
    """How many connections of the gateway wait in TREAD."""
    return sum(each["name"] == NAME and "b" in each["flags"] for each in client.redis.client_list())


def ids_of(found: list[Any]) -> list[str]:
    return [each.id for each in found]


def unchunked(body: bytes) -> bytes:
    """The content of a chunked body, up to where it ends."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts)


def test_a_large_event_is_written_in_parts() -> None:
    """The reason of a disconnection is written between two events only."""
    written: list[bytes] = []
    writer: Any = events.EventWriter.__new__(events.EventWriter)

    class Response:
        async def write(self, part: bytes) -> None:
            written.append(part)

    writer.response = Response()
    writer._counts = GatewayCounts()
    small, large = b"data: x\n\n", b"data: " + b"x" * 3 * PART + b"\n\n"
    for data in (small, small * 20_000, large, small + large + small, large * 2):
        written.clear()
        asyncio.run(writer.write(data))
        assert b"".join(written) == data
        assert all(0 < len(part) <= PART for part in written)
        if large not in data:
            assert all(part.endswith(b"\n\n") for part in written)
        assert writer._whole


def test_readers_share_the_bytes_of_events() -> None:
    """Each reader that does not read would hold a copy of all events in memory otherwise."""
    tail = tails.StreamTail(cast("Any", None), b"chat", cast("Any", None))
    tail.position = StreamId(0, 0)
    sizes = [PART // 3] * 40 + [3 * PART] + [10] * 500
    entries = [Entry(StreamId(1, at), [b"f", b"x" * size]) for at, size in enumerate(sizes)]
    published(tail, entries)
    at, found = tail.floor, list[bytes]()
    while taken := tail.take(at):
        assert taken[1] > at
        found.append(taken[0])
        assert len(taken[0]) <= PART or taken[0].count(b"data: ") == 1
        same = tail.take(at)
        assert same is not None
        assert same[0] is taken[0] or taken[1] > entries[40].id
        at = taken[1]
    assert at == tail.position == entries[-1].id
    assert b"".join(found) == b"".join(map(frame, entries))
    for after in (3, 39, 40, 41, 300):
        taken = tail.take(entries[after].id)
        assert taken is not None
        assert taken[0].startswith(frame(entries[after + 1]))
    published(tail, [Entry(StreamId(2, 0), [b"f", b"y"])])
    assert 0 < tail._bytes <= tails.RETAINED


def published(tail: tails.StreamTail, entries: list[Entry]) -> None:
    tail._publish(Batch(entries, Span(entries[0].id, entries[-1].id)))


def test_entries_are_events(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        old = await caller.append("chat", {"n": 0})
        async with Events(caller, S).open() as live, Events(caller, f"{S}?after=earliest").open() as whole:
            assert live.answer.headers["X-Accel-Buffering"] == "no"
            assert live.answer.headers["Cache-Control"] == "no-store"
            new = await caller.append("chat", {"n": 1, "text": "a\nb\r☃"}, {"n": 2})
            found = await live.take(2)
            assert [(each.name, each.id) for each in found] == [("message", each) for each in new]
            assert found[0].data == {"id": new[0], "fields": {"n": "1", "text": "a\nb\r☃"}}
            assert ids_of(await whole.take(3)) == old + new
            assert live.retry == events.RETRY_MS
        async with Events(caller, S, new[0]).open() as resumed:
            assert ids_of(await resumed.take(1)) == new[1:]
        assert (await caller.get(S, Accept="text/event-stream", Last_Event_ID="nope"))[0] == 400

    visit(tidelog_server, test)


def test_a_reader_that_saw_nothing_resumes_exactly(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        await caller.append("chat", {"n": 0})
        reader = Events(caller, S)
        async with reader.open():
            first = await caller.append("chat", {"n": 1})
            await reader.take(1)
            reader.position = ""
        async with reader.open():

            async def positioned() -> None:
                async for _ in reader:
                    pass

            task = asyncio.create_task(positioned())
            await until(lambda: reader.position)
            task.cancel()
            await asyncio.wait([task])
        assert reader.position == first[0]
        missed = await caller.append("chat", {"n": 2})
        async with reader.open():
            assert ids_of(await reader.take(1)) == missed

    visit(tidelog_server, test)


@pytest.mark.parametrize("seed", range(3))
def test_no_gap_and_no_duplicate(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Readers disconnect at random, after random numbers of events, while entries of all sizes arrive."""
    monkeypatch.setattr(tails, "RETAINED", 2000)  # readers often fall behind
    monkeypatch.setattr(tails, "BATCH", 1000)
    monkeypatch.setattr(events, "RANGE", 700)
    chance = random.Random(seed)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        appended: list[str] = []

        async def append() -> None:
            for n in range(150):
                size, number = chance.choice((1, 300)), chance.choice((1, 1, 7))
                appended.extend(await caller.append("chat", *[{"n": n, "x": "x" * size}] * number))
            appended.extend(await caller.append("chat", {"end": 1}))

        _, *found = await asyncio.gather(append(), *(ids_until_end(caller, S, chance) for _ in range(6)))
        assert found == [appended] * 6

    visit(tidelog_server, test)


def test_readers_share_one_connection(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        readers = [Events(caller, S) for _ in range(200)]
        opened = [reader.open() for reader in readers]
        await asyncio.gather(*(each.__aenter__() for each in opened))
        with tidelog_server.client() as client:
            await until(lambda: followers(client) == 1, "they wait")
            ids = await caller.append("chat", *({"n": n} for n in range(3)))
            for found in await asyncio.gather(*(reader.take(3) for reader in readers)):
                assert ids_of(found) == ids
            await until(lambda: followers(client) == 1)
            ours = [each for each in client.redis.client_list() if each["name"] == NAME]
            assert len(ours) <= users.CONNECTIONS + 1
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in opened))
        await until(lambda: not gateway.site.readers.used)

    visit(tidelog_server, test)


def test_a_tail_ends_after_its_last_reader(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "LINGER", 0.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        with tidelog_server.client() as client:
            async with Events(caller, S).open():
                await until(lambda: followers(client) == 1)
                gateway.site.tails.sweep()
                assert followers(client) == 1
            await until(lambda: not gateway.site.readers.used)
            gateway.site.tails.sweep()
            await until(lambda: followers(client) == 0)
            assert gateway.site.tails._streams.used == 0

    visit(tidelog_server, test)


def test_rights_and_types(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann", "~chat", "+@connection", "+tread")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ann = caller.as_user("ann")
        status, found, _ = await ann.get("/v1/streams/mails", Accept="text/event-stream")
        assert (status, found["code"]) == (403, "NOPERM")
        with tidelog_server.client() as client:
            client.redis.set("mails", "x")
            assert (await caller.get("/v1/streams/mails", Accept="text/event-stream"))[0] == 409
            async with Events(ann, S).open() as reader:
                await until(lambda: followers(client) == 1)
                client.redis.execute_command("ACL", "SETUSER", "ann", "-tread")
                (problem,) = await reader.take(1)
                assert (problem.name, problem.data["status"], problem.data["code"]) == ("problem", 403, "NOPERM")
                assert await reader.answer.content.read() == b""

    visit(tidelog_server, test)


def test_a_changed_password_ends_the_readers(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    monkeypatch.setattr(tails, "VERIFIED", 0.0)
    monkeypatch.setattr(tails, "BLOCK_MS", 100)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller.as_user("ann"), S).open() as reader:
            with tidelog_server.client() as client:
                client.redis.execute_command("ACL", "SETUSER", "ann", "resetpass", ">another")
            await caller.append("chat", {"n": 1})
            found = await reader.take(2)
            assert [each.name for each in found][-1] == "problem"
            assert found[-1].data["status"] == 401

    visit(tidelog_server, test)


def test_evicted_entries_are_missing(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ids = await caller.append("chat", *({"n": n} for n in range(10)))
        await caller.post(f"{S}?maxcount=2", {"fields": {"n": 10}})
        async with Events(caller, S, ids[2]).open() as reader:
            found = await reader.take(3)
            assert [each.name for each in found] == ["missing", "message", "message"]
            assert found[0].data == {"after": ids[2]}
        with tidelog_server.client() as client:
            client.ttrim("chat", count=0)
        async with Events(caller, S, ids[2]).open() as reader:
            (event,) = await reader.take(1)
            assert event.name == "missing"
            new = await caller.append("chat", {"n": 11})
            assert ids_of(await reader.take(1)) == new

    visit(tidelog_server, test)


def test_a_deleted_stream(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries remain in the memory of the gateway for FRESH seconds only."""
    monkeypatch.setattr(tails, "FRESH", 0.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as reader:
            ids = await caller.append("chat", {"n": 1})
            ids += await caller.append("chat", {"n": 2})
            assert ids_of(await reader.take(2)) == ids
            with tidelog_server.client() as client:
                client.redis.delete("chat")
            gateway.site.tails.sweep()
            async with Events(caller, S, "1.0").open() as behind:
                new = await caller.append("chat", {"n": 3})
                assert ids_of(await reader.take(1)) == ids_of(await behind.take(1)) == new

    visit(tidelog_server, test)


def test_comments_keep_a_connection_alive(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUIET", 0.05)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as reader:
            task = asyncio.create_task(reader.take(1))
            await until(lambda: len(reader.comments) >= 3)
            await caller.append("chat", {"n": 1})
            await task

    visit(tidelog_server, test)


def test_a_client_that_does_not_read(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is disconnected with the reason. Other readers are not affected, and it can resume."""
    monkeypatch.setattr(events, "UNREAD", 0.3)
    monkeypatch.setattr(httpaddress, "LINGER", 20.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        place = urlsplit(caller.url)
        slow, writer = await asyncio.open_connection(place.hostname, place.port, limit=1024)
        writer.write(f"GET {S}?after=0.0 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        async with Events(caller, f"{S}?after=0.0").open() as other:
            await until(lambda: gateway.site.readers.used == 2)
            ids: list[str] = []
            while gateway.site.readers.used == 2 and len(ids) < 2000:
                ids += await caller.append("chat", *({"x": "x" * 50_000} for _ in range(20)))
                assert ids_of(await other.take(20)) == ids[-20:]
            assert gateway.site.readers.used == 1
        async with asyncio.timeout(30):
            received = unchunked((await slow.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        assert b": disconnected: nothing was read for 0 seconds; resume with Last-Event-ID\n\n" in received
        found = re.findall(r"(?<=\nid: )[\d.]+(?=\n.*\n\n)", received.decode())
        assert found == ids[: len(found)]
        async with Events(caller, S, found[-1]).open() as resumed:
            assert ids_of(await resumed.take(len(ids) - len(found))) == ids[len(found) :]

    visit(tidelog_server, test)


def test_a_server_that_is_killed(tidelog_server: Server) -> None:
    """The event stream stays open, and nothing is missing."""

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as reader:
            ids = await caller.append("chat", {"n": 1})
            assert ids_of(await reader.take(1)) == ids
            tidelog_server.kill()
            async with Events(caller, S, ids[0]).open() as resumed:  # the user is known
                await asyncio.to_thread(tidelog_server.start)
                ids = await caller.append("chat", {"n": 2}, Idempotency_Key="k")
                assert ids_of(await reader.take(1)) == ids_of(await resumed.take(1)) == ids

    visit(tidelog_server, test)


def test_a_server_that_is_stopped(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "ANSWER_MS", 300)
    monkeypatch.setattr(tails, "BLOCK_MS", 200)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as reader:
            os.kill(tidelog_server.pid, signal.SIGSTOP)
            try:
                (tail,) = gateway.site.tails._tails.values()
                await until(lambda: tail._failures._logged, "the tail has noticed it")
            finally:
                os.kill(tidelog_server.pid, signal.SIGCONT)
            ids = await caller.append("chat", {"n": 1}, Idempotency_Key="k")
            assert ids_of(await reader.take(1)) == ids

    visit(tidelog_server, test)


def test_another_leader() -> None:
    with running_server() as leader, running_server(replicaof=f"{leader.host} {leader.port}") as replica:
        url = f"redis://127.0.0.1:{leader.port},127.0.0.1:{replica.port}"

        async def test(caller: Caller, gateway: GatewayServer) -> None:
            async with Events(caller, S).open() as reader:
                ids = await caller.append("chat", {"n": 1})
                with leader.client() as client, replica.client() as other:
                    client.wait(1)
                    client.redis.execute_command("FAILOVER")
                    await until(lambda: other.redis.role()[0] in (b"master", "master"))
                ids += await caller.append("chat", {"n": 2}, Idempotency_Key="k")
                assert ids_of(await reader.take(2)) == ids

        visit(url, test)


def test_limits(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open(), Events(caller, S).open():
            status, found, headers = await caller.get(S, Accept="text/event-stream")
            assert (status, found["code"], headers["Retry-After"]) == (429, "too-many", "10")
            add_user(tidelog_server, "ann")
            async with Events(caller.as_user("ann"), S).open():
                add_user(tidelog_server, "bob")
                assert (await caller.as_user("bob").get(S, Accept="text/event-stream"))[0] == 503
            gateway.site.tails._streams._total = 2
            await until(lambda: gateway.site.readers.used == 2)
            status, found, _ = await caller.as_user("ann").get("/v1/streams/other", Accept="text/event-stream")
            assert (status, found["code"]) == (503, "full")

    visit(tidelog_server, test, readers=3, user_readers=2)


def test_a_shutdown_ends_the_streams_with_a_hint(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as reader:
            before = reader.retry
            stopping = asyncio.create_task(gateway.stop())
            assert await reader.take(1) == []
            assert 0 < reader.retry != before
            await stopping

    visit(tidelog_server, test)


def test_long_polling(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        waiting = asyncio.create_task(caller.get(f"{S}?after=latest&wait=20s"))
        await until(lambda: gateway.site.readers.used == 1)
        ids = await caller.append("chat", {"n": 1})
        _, found, _ = await waiting
        assert (found["entries"][0]["id"], found["next"]) == (ids[0], ids[0])
        _, found, _ = await caller.get(f"{S}?after={ids[0]}&wait=10ms")
        assert found["entries"] == []
        assert (await caller.get(f"{S}?wait=61"))[0] == 400

    visit(tidelog_server, test)


def test_a_reader_that_can_not_read_old_entries_ends_alone(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, S).open() as live:
            ids = await caller.append("chat", {"n": 1})
            assert ids_of(await live.take(1)) == ids
            monkeypatch.setattr(tails, "FRESH", 0.0)
            gateway.site.tails.sweep()

            async def damaged(_: Any, call: Any) -> Any:
                raise ProblemError(500, "ERR", "ERR damaged data")

            monkeypatch.setattr(users.GatewayUser, "read_page", damaged)
            async with Events(caller, f"{S}?after=0.0").open() as behind:
                (problem,) = await behind.take(2)
                assert (problem.name, problem.data["status"]) == ("problem", 500)
            ids = await caller.append("chat", {"n": 2})
            assert ids_of(await live.take(1)) == ids

    visit(tidelog_server, test)
