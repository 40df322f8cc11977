"""websocket_client and websocket_server: both directions, limits, peers that are slow, broken or foreign."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.tidelog.flows.netkit import changing, feed, peer, running, seen, served, url_of
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError


def test_a_server_takes_messages_and_answers_through_the_flow() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0)
        flow.pipeline("work", changing(lambda event: setattr(event, "value", {"you": event.value})))
        flow.connect("in -> work -> in")
        async with served(flow) as (one, url, session):
            async with session.ws_connect(url + "a?b=c") as first, session.ws_connect(url) as second:
                for number in range(20):
                    await first.send_json(number)
                    await second.send_json(-number)
                got = [[json.loads(await each.receive_str()) for _ in range(20)] for each in (first, second)]
            assert got == [[{"you": number} for number in range(20)], [{"you": -number} for number in range(20)]]
            await until(lambda: one.unsettled().count == 0)

    asyncio.run(scenario())


def test_what_an_event_says_of_its_connection() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0, codec="string", auth={"bearer": "x"})
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (_, url, session):
            async with session.ws_connect(url + "a?b=c", headers={"Authorization": "Bearer x", "X-A": "b"}) as ws:
                await ws.send_str("text")
                await ws.send_bytes(b"bytes")
                await until(lambda: len(sink.events) == 2)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                await session.ws_connect(url)
        assert sink.values == ["text", "bytes"]
        meta = sink.events[0].meta
        assert (meta["path"], meta["query"], meta["peer"]) == ("/a", {"b": "c"}, "127.0.0.1")
        assert meta["headers"]["x-a"] == "b"
        assert "authorization" not in meta["headers"]
        assert meta["connection"] == sink.events[1].meta["connection"]

    asyncio.run(scenario())


def test_what_is_written_goes_to_one_or_to_all() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("out", "websocket_server", port=0)
        source, sink = feed(flow), seen(flow)
        flow.connect("in -> out", "out -> seen")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = await url_of(one, "out")
            source.give(Event(0, None, 0))
            await until(lambda: 0 in source.outcomes)
            assert source.outcomes[0] == ("discard", "out: no peer is connected")
            async with session.ws_connect(url) as first, session.ws_connect(url) as second:
                await first.send_json("first")
                await until(lambda: sink.events)
                ident = sink.events[0].meta["connection"]
                connector: Any = one.graph.connectors["out"]
                await until(lambda: len(connector.peers) == 2)
                source.give(Event("all", None, 1), Event("one", {"connection": ident}, 2))
                source.give(Event("none", {"connection": "gone"}, 3), Event(object(), None, 4))
                await until(lambda: len(source.outcomes) == 5)
                assert [source.outcomes[each][0] for each in range(1, 5)] == ["ok", "ok", "discard", "reject"]
                assert [await first.receive_json() for _ in range(2)] == ["all", "one"]
                assert await second.receive_json() == "all"

    asyncio.run(scenario())


def test_messages_are_limited_and_broken_peers_are_closed() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0, max_bytes=100)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (one, url, session):
            async with session.ws_connect(url) as ws:
                await ws.send_str('"' + "x" * 200 + '"')
                message = await ws.receive()
                assert (message.type, message.data) == (WSMsgType.CLOSE, 1009)
            async with session.ws_connect(url) as ws:
                await ws.send_str("{")  # rejected; the connection stays
                await ws.send_str("1")
                await until(lambda: sink.values == [1])
            host, _, port = url.split("/")[2].partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + key + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(b"\xff\xff\xff\xff\xff\xff\xff\xff")  # no frame of the protocol
            async with asyncio.timeout(15):
                await reader.read()
            writer.close()
            connector: Any = one.graph.connectors["in"]
            await until(lambda: not connector.peers)
            async with session.post(url.replace("ws", "http", 1), data=b"x") as response:
                assert response.status == 426

    asyncio.run(scenario())


def test_pages_of_other_sites_may_not_connect() -> None:
    async def scenario() -> None:
        for options, allowed in (({}, ["HOST"]), ({"origins": ["https://a.org"]}, ["https://a.org"])):
            flow = Flow("chat")
            flow.connector("in", "websocket_server", **{"port": 0, **options})
            seen(flow)
            flow.connect("in -> seen")
            async with served(flow) as (_, url, session):
                own = url.replace("ws", "http", 1).rstrip("/")
                for origin in [each.replace("HOST", own) for each in allowed]:
                    async with session.ws_connect(url, headers={"Origin": origin}):
                        pass
                with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                    await session.ws_connect(url, headers={"Origin": "https://b.org"})

    asyncio.run(scenario())


def test_a_paused_flow_reads_no_more_than_its_inbox_holds() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0, max_waiting=10)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (one, url, session):
            await one.pause()
            connector: Any = one.graph.connectors["in"]
            async with session.ws_connect(url) as ws:
                for number in range(200):
                    await ws.send_json(number)
                await until(lambda: connector.stored == 10)
                await asyncio.sleep(0.05)  # nothing more comes in
                assert connector.stored == 10
                assert sink.events == []
                await one.resume()
                await until(lambda: len(sink.events) == 200)
        assert sink.values == list(range(200))

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [50, 5000])
def test_a_peer_that_is_not_read_while_the_flow_is_paused_is_not_taken_for_dead(count: int) -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0, max_waiting=5, ping="100ms")
        sink = seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (one, url, session):
            await one.pause()
            async with session.ws_connect(url) as ws:

                async def send() -> None:
                    for number in range(count):
                        await ws.send_json(str(number) * 100)

                sending = asyncio.ensure_future(send())
                answering = asyncio.ensure_future(ws.receive())
                await asyncio.sleep(0.5)  # several pings
                await one.resume()
                await sending
                await until(lambda: len(sink.events) == count)
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    asyncio.run(scenario())


def test_a_peer_that_does_not_answer_pings_is_gone() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("in", "websocket_server", port=0, ping="100ms")
        seen(flow)
        flow.connect("in -> seen")
        async with served(flow) as (one, url, session):
            connector: Any = one.graph.connectors["in"]
            async with session.ws_connect(url) as alive, session.ws_connect(url, autoping=False):
                answering = asyncio.ensure_future(alive.receive())
                await until(lambda: len(connector.peers) == 2)
                await until(lambda: len(connector.peers) == 1)
                await asyncio.sleep(0.5)
                assert len(connector.peers) == 1
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    asyncio.run(scenario())


def test_a_slow_peer_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        flow = Flow("chat")
        flow.connector("out", "websocket_server", port=0, send_timeout="200ms", codec="binary")
        source = feed(flow)
        flow.connect("in -> out")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = await url_of(one, "out")
            host, _, port = url.split("/")[2].partition(":")
            slow = socket.create_connection((host, int(port)))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + key + b"\r\n")
            async with session.ws_connect(url, max_msg_size=0) as ws:
                connector: Any = one.graph.connectors["out"]
                await until(lambda: len(connector.peers) == 2)
                for number in range(30):
                    source.give(Event(bytes(1 << 20), None, number))
                for _ in range(30):
                    assert len((await asyncio.wait_for(ws.receive(), 15)).data) == 1 << 20
                await until(lambda: len(source.outcomes) == 30 and len(connector.peers) == 1)
            slow.close()
        assert {each[0] for each in source.outcomes.values()} == {"ok"}

    asyncio.run(scenario())


def test_a_client_reads_writes_and_connects_again() -> None:
    async def scenario() -> None:
        got: list[Any] = []
        sockets: list[web.WebSocketResponse] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.headers["Authorization"] == "Bearer x"
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            sockets.append(ws)
            async for message in ws:
                got.append(json.loads(message.data))
                await ws.send_str(json.dumps({"echo": got[-1]}))
            return ws

        async with peer(answer) as url:
            flow = Flow("chat")
            flow.connector(
                "out", "websocket_client", url=url.replace("http", "ws", 1), auth={"bearer": "x"},
                reconnect={"retry": {"first": "10ms"}},
            )  # fmt: skip
            source, sink = feed(flow, remembers=True, on_error={"retry": {"first": "10ms"}}), seen(flow)
            flow.connect("in -> out", "out -> seen")
            async with running(flow) as one:
                source.give(Event(1, None, 1))
                await until(lambda: sink.values == [{"echo": 1}])
                await sockets[0].close()
                await until(lambda: one.graph.connections["out"].connects == 2)
                source.give(Event(2, None, 2))
                await until(lambda: sink.values == [{"echo": 1}, {"echo": 2}])
                await until(lambda: len(source.outcomes) == 2)
        assert got == [1, 2]

    asyncio.run(scenario())


def test_a_server_that_refuses_is_tried_again() -> None:
    async def scenario() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=403)

        async with peer(answer) as url:
            flow = Flow("chat")
            flow.connector("in", "websocket_client", url=url.replace("http", "ws", 1))
            seen(flow)
            flow.connect("in -> seen")
            async with running(flow) as one:
                await until(lambda: "403" in one.graph.connections["in"].error)

    asyncio.run(scenario())


def test_what_is_wrong_is_said_at_declaration() -> None:
    for kind, options, text in (
        ("websocket_client", {"url": "http://h"}, "must have the form ws://"),
        ("websocket_client", {"url": "ws://h", "tls": {}}, "is not wss"),
        ("websocket_client", {"url": "ws://h", "frames": "blue"}, "frames"),
        ("websocket_server", {"port": 0, "path": "x"}, "path"),
    ):
        with pytest.raises(FlowFileError, match=text):
            Flow("chat").connector("in", kind, **options)
