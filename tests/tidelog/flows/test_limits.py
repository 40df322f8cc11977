"""Peers that hold a connection and say nothing, little, or read nothing: nobody else is locked out by them.

Each test runs in asyncio's event loop and in uvloop's, in which programs run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from tests.tidelog.flows.byteskit import running
from tests.tidelog.flows.netkit import port_of
from tests.tidelog.flows.servicekit import MAIN, hosted, served
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.connectors.sockets import tcp
from tidelog.flows.service import api, requestbodies
from tidelog.operating import httpaddress
from tidelog.operating.httpaddress import HttpAddress, HttpLimits

LONG = 20.0
GET = b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def do(test: Callable[[], Awaitable[None]]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test())  # type: ignore[arg-type] # tests are coroutine functions

    return do


class Place:
    """Where something listens, and how many connections it says it has."""

    def __init__(self, port: int, connections: Callable[[], int]) -> None:
        self.port = port
        self.connections = connections
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", **options: Any) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self._open.append(writer)
        writer.write(data)
        return reader, writer

    async def said(self, data: bytes, **options: Any) -> bytes:
        """All that is answered to the data until the connection is closed."""
        reader, _ = await self.connect(data, **options)
        return await rest(reader)

    def close(self) -> None:
        for each in self._open:
            each.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LONG):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def head(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LONG):
        return await reader.readuntil(b"\r\n\r\n")


@contextlib.asynccontextmanager
async def api_place(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> AsyncIterator[Place]:
    made: list[HttpAddress] = []

    def noted(host: str, port: int, given: HttpLimits) -> HttpAddress:
        made.append(HttpAddress(host, port, given))
        return made[0]

    monkeypatch.setattr(api, "HttpAddress", noted)
    for name, value in limits.items():
        monkeypatch.setattr(api, name, value)
    async with hosted(MAIN) as host, served(host) as ask:
        place = Place(int(ask.url.rpartition(":")[2]), lambda: made[0].connections)
        try:
            yield place
        finally:
            place.close()


@contextlib.asynccontextmanager
async def connector_place(kind: str, **options: Any) -> AsyncIterator[Place]:
    flow = Flow("limits")
    flow.connector("in", kind, port=0, **options)
    flow.connector("out", "null")
    flow.connect("in -> out")
    async with running(flow) as one:
        connector: Any = one.graph.connectors["in"]
        await until(lambda: connector.listener is not None and connector.listener.port)
        place = Place(connector.listener.port, lambda: connector.listener.connections)
        try:
            yield place
        finally:
            place.close()


@contextlib.asynccontextmanager
async def some_place(kind: str, monkeypatch: pytest.MonkeyPatch, connections: int, header: float, idle: float) -> Any:
    if kind == "api":
        limits = {"CONNECTIONS": connections, "HEADERS_WITHIN": header, "IDLE": idle}
        async with api_place(monkeypatch, **limits) as place:
            yield place
        return
    options = {"max_connections": connections, "header_timeout": header, "idle_timeout": idle}
    async with connector_place(kind, **options) as place:
        yield place


KINDS = pytest.mark.parametrize("kind", ["api", "http_server", "websocket_server"])


@KINDS
def test_one_connection_too_many_gets_503_and_is_closed(kind: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with some_place(kind, monkeypatch, 3, LONG, LONG) as place:
            held = [await place.connect() for _ in range(3)]
            await until(lambda: place.connections() == 3)
            for _ in range(5):
                assert (await place.said(b"")).startswith(b"HTTP/1.1 503 ")
            assert place.connections() == 3
            held[0][1].close()
            await until(lambda: place.connections() == 2)
            again, _ = await place.connect(GET + b"\r\n")
            assert (await head(again)).startswith(b"HTTP/1.1 ")

    run(test)


@KINDS
def test_silent_and_slow_peers_are_closed(kind: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with some_place(kind, monkeypatch, 3, 0.2, 0.4) as place:
            assert await place.said(b"") == b""
            assert await place.said(b"GET /v1/li") == b""
            assert await place.said(GET + b"X-A: ") == b""
            # Bytes that come one by one do not make it longer.
            reader, writer = await place.connect(GET + b"X-A: ")
            slow = asyncio.create_task(_drip(writer))
            assert await rest(reader) == b""
            slow.cancel()
            # And nothing at all after an answer.
            reader, _ = await place.connect(GET + b"\r\n")
            await head(reader)
            await rest(reader)
            await until(lambda: place.connections() == 0)

    run(test)


@KINDS
def test_the_headers_of_a_second_request_are_awaited_no_longer(
    kind: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with some_place(kind, monkeypatch, 3, 0.3, 600) as place:
            reader, writer = await place.connect(GET + b"\r\n")
            await head(reader)
            writer.write(b"GET / HTTP/1.1\r\nX-A:")
            slow = asyncio.create_task(_drip(writer))
            await rest(reader)
            slow.cancel()
            await until(lambda: place.connections() == 0)

    run(test)


async def _drip(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)


def test_a_slow_body_ends_with_408_at_the_api(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpaddress, "LINGER", 0.2)
    monkeypatch.setattr(requestbodies, "BODY_WITHIN", 0.2)

    async def test() -> None:
        async with api_place(monkeypatch) as place:
            begin = b"PUT /v1/flows/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            for kind in (b"application/json", b"application/yaml"):
                reader, writer = await place.connect(begin + b"Content-Type: " + kind + b"\r\n\r\n{")
                slow = asyncio.create_task(_drip(writer))
                assert (await head(reader)).startswith(b"HTTP/1.1 408 ")
                await rest(reader)
                slow.cancel()
            await until(lambda: place.connections() == 0)

    run(test)


def test_who_reads_no_answers_is_disconnected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpaddress, "UNREAD", 0.3)
    monkeypatch.setattr(httpaddress, "LINGER", 0.2)

    async def test() -> None:
        async with api_place(monkeypatch) as place:
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", place.port))
            peer.setblocking(False)
            loop = asyncio.get_running_loop()
            asking = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000

            async def ask() -> None:
                with contextlib.suppress(ConnectionError):
                    while True:
                        await loop.sock_sendall(peer, asking)

            await until(lambda: place.connections() == 1)
            asking_on = asyncio.create_task(ask())
            await until(lambda: place.connections() == 0)
            asking_on.cancel()
            await asyncio.gather(asking_on, return_exceptions=True)
            peer.close()
            await until(lambda: place.connections() == 0)

    run(test)


def test_silence_before_tls_counts_and_ends(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.check_hostname = False

    async def test() -> None:
        tls = {"cert": str(tmp_path / "server.pem")}
        async with connector_place("http_server", tls=tls, max_connections=3, header_timeout=1.0) as place:
            silent = [await place.connect() for _ in range(3)]
            await until(lambda: place.connections() == 3)
            assert await place.said(b"\x16") == b""
            for reader, _ in silent:
                await rest(reader)
            await until(lambda: place.connections() == 0)
            body = b'{"a": 1}'
            asked = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            assert (await place.said(asked, ssl=context)).startswith(b"HTTP/1.1 200 ")
            assert await place.said(b"no TLS\r\n\r\n") is not None
            await until(lambda: place.connections() == 0)

    run(test)


@KINDS
def test_a_peer_that_has_sent_its_end_gets_its_answer(kind: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpaddress, "LINGER", 0.2)

    async def test() -> None:
        async with some_place(kind, monkeypatch, 10, LONG, LONG) as place:
            for data in (GET + b"\r\n", POST + b"Content-Length: 1\r\n\r\n1"):
                reader, writer = await place.connect(data)
                writer.write_eof()
                assert (await rest(reader)).startswith(b"HTTP/1.1 ")
            # Half a request gets none, and is not waited for.
            reader, writer = await place.connect(POST + b"Content-Length: 10\r\n\r\n1")
            writer.write_eof()
            await rest(reader)
            await until(lambda: place.connections() == 0)

    run(test)


def _echo(*operators: Any, **options: Any) -> Flow:
    flow = Flow("echo")
    flow.connector("in", "tcp_server", port=0, codec="string", **options)
    flow.pipeline("same", *operators)
    flow.connect("in -> same -> in")
    return flow


async def _slowly(value: Any) -> Any:
    await asyncio.sleep(0.3)
    return value


@pytest.mark.parametrize("operators", [(), (_slowly,)], ids=["at once", "later"])
def test_tcp_answers_a_peer_that_has_sent_its_end(run: Run, operators: tuple[Any, ...]) -> None:
    async def test() -> None:
        async with running(_echo(*operators)) as one:
            for _ in range(1 if operators else 10):
                reader, writer = await asyncio.open_connection("127.0.0.1", await port_of(one))
                writer.write(b"one\ntwo\nthree")
                writer.write_eof()
                assert await rest(reader) == b"one\ntwo\nthree\n"
                writer.close()
            connector: Any = one.graph.connectors["in"]
            await until(lambda: not connector.peers)
            assert connector.unanswered == {}

    run(test)


def test_a_tcp_client_answers_a_server_that_has_sent_its_end(run: Run) -> None:
    async def test() -> None:
        got: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"one\ntwo\n")
            writer.write_eof()
            got.append(await rest(reader))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        flow = Flow("echo")
        port = server.sockets[0].getsockname()[1]
        flow.connector("in", "tcp_client", port=port, codec="string", reconnect="none")
        flow.pipeline("same", _slowly)
        flow.connect("in -> same -> in")
        async with running(flow):
            await until(lambda: got)
        assert got == [b"one\ntwo\n"]
        server.close()

    run(test)


def test_tcp_does_not_wait_for_ever_for_answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "QUIET", 0.2)

    async def never(_: Any) -> Any:
        await asyncio.Event().wait()

    async def test() -> None:
        async with running(_echo(never, linger=0.2)) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", await port_of(one))
            writer.write(b"one\n")
            writer.write_eof()
            assert await rest(reader) == b""
            writer.close()

    run(test)


def test_tcp_silent_connections_make_way(run: Run) -> None:
    async def test() -> None:
        async with running(_echo(max_connections=3, make_way=0.5)) as one:
            port = await port_of(one)
            connector: Any = one.graph.connectors["in"]
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await until(lambda: len(connector.peers) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await rest(reader) == b""  # none was silent for long
            writer.close()
            silent[1][1].write(b"here\n")
            await silent[1][0].readline()
            await asyncio.sleep(0.6)
            silent[0][1].write(b"no message yet")
            silent[1][1].write(b"still here\n")
            await silent[1][0].readline()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"new\n")
            async with asyncio.timeout(LONG):
                assert await reader.readline() == b"new\n"
            assert await rest(silent[0][0]) == b""
            assert one.graph.sources["in"].counts["silent_connections"] == 1
            for _, each in (*silent, (reader, writer)):
                each.close()

    run(test)


def test_tcp_connections_that_are_not_read_are_not_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "PAUSE", 0.1)

    async def test() -> None:
        async with running(_echo(max_connections=2, make_way=0.3)) as one:
            port = await port_of(one)
            connector: Any = one.graph.connectors["in"]
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await until(lambda: len(connector.peers) == 2)
            await one.pause()
            for _, writer in held:
                writer.write(b"waits\n")
            await asyncio.sleep(0.6)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await rest(reader) == b""
            writer.close()
            await one.resume()
            for reader, writer in held:
                async with asyncio.timeout(LONG):
                    assert await reader.readline() == b"waits\n"
                writer.close()
            assert "silent_connections" not in one.graph.sources["in"].counts

    run(test)
