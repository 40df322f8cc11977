"""Every connector of ours passes the conformance kit, with a real peer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

import tests.tidelog.flows.brokerchecks  # noqa: F401 - registers its checks
from tests.tidelog.flows.conformancekit import CHECKS, UNWRITABLE, VALUES, Peers, checks, made
from tests.waiting import until
from tidelog.flows import Flow, registry
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing import check_sink, check_source

ELSEWHERE = ("amqp", "postgres_cdc")  # test_amqp, test_postgres_cdc, which are long


@pytest.mark.parametrize("name", [each for each in registry.CONNECTORS if each not in ELSEWHERE])
def test_connectors(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for check in CHECKS[name]:
        check(Peers(request, tmp_path))


# -- connectors without a peer -------------------------------------------------------------------------------
@checks("null")
def null(_: Peers) -> None:
    check_source(made("null", count=7), ends=True)
    check_sink(made("null"), VALUES)


@checks("script")
def script(_: Peers) -> None:
    check_source(made("script", values=list(range(7))), ends=True)
    check_sink(made("script"), VALUES)
    check_sink(made("script", act="slow", delay="1ms"), VALUES)


@checks("fault")
def fault(_: Peers) -> None:
    check_source(made("fault", count=7), ends=True)
    check_sink(made("fault"), VALUES)


@checks("metronome")
def metronome(_: Peers) -> None:
    check_source(made("metronome", interval="5ms"))


@checks("cron")
def cron(_: Peers) -> None:
    check_source(made("cron", schedule="* * * * * *"), count=1)


@checks("metrics")
def metrics(_: Peers) -> None:
    async def produce(source: Any, _count: int) -> None:
        flow = Flow("observed")
        flow.connector("in", "null")
        flow.connector("out", "null")
        flow.connect("in -> out")
        running = RunningFlow(flow.spec(), FlowContext("observed"))
        source.context.flow_context.shared["running"] = {"observed": running}

    check_source(made("metrics", interval="5ms"), produce=produce)


@checks("exit")
def ends_its_flow(_: Peers) -> None:
    check_sink(made("exit", what="flow"), VALUES)


# -- files ---------------------------------------------------------------------------------------------------
@checks("file")
def file(peers: Peers) -> None:
    path = peers.path / "in"
    path.touch()

    async def append(_: Source, count: int) -> None:
        with path.open("a") as out:
            out.writelines(f"{json.dumps({'n': number})}\n" for number in range(count))

    check_source(made("file", path=str(path), tail=True, poll="5ms"), produce=append, redelivers=True)
    path = peers.path / "later"
    pattern = made("file", path=str(peers.path / "lat*"), tail=True, poll="5ms", position=str(peers.path / "positions"))
    check_source(pattern, produce=append, redelivers=True)

    async def written(_: Sink) -> list[Any]:
        return [json.loads(line) for line in (peers.path / "out").read_text().splitlines()]

    check_sink(made("file", path=str(peers.path / "out")), VALUES, invalid=UNWRITABLE, written=written)


@checks("stdio")
def stdio(_: Peers) -> None:
    reads, writes = os.pipe()

    def source() -> Any:
        connector = made("stdio")()
        connector.stdin = reads
        return connector

    async def produce(_: Source, count: int) -> None:
        os.write(writes, b"text\n" * count)

    try:
        check_source(source, produce=produce)
    finally:
        os.close(reads)
        os.close(writes)
    check_sink(made("stdio", codec="json"), VALUES, invalid=UNWRITABLE)


# -- sockets -------------------------------------------------------------------------------------------------
def address(connector: Any) -> tuple[str, int]:
    host, _, port = connector.context.described["address"].rpartition(":")
    return host, int(port)


class LinePeer:
    """A TCP server that stores the lines that it gets, and sends lines to its clients."""

    def __init__(self) -> None:
        self.port = 0
        self.lines: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for each in self._writers:
                each.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while line := await reader.readline():
            self.lines.append(line)

    async def send(self, _: Source, count: int) -> None:
        await until(lambda: self._writers)
        self._writers[-1].write(b'{"n": 1}\n' * count)

    async def written(self, _: Sink) -> list[Any]:
        await until(lambda: len(self.lines) >= 2 * len(VALUES))
        return [json.loads(each) for each in self.lines]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return cast("int", found.getsockname()[1])


@checks("tcp_client")
def tcp_client(_: Peers) -> None:
    peer = LinePeer()
    peer.port = free_port()
    check_source(made("tcp_client", port=peer.port), produce=peer.send, peer=peer.running)
    check_sink(made("tcp_client", port=peer.port), VALUES, invalid=UNWRITABLE, written=peer.written, peer=peer.running)


@checks("tcp_server")
def tcp_server(_: Peers) -> None:
    writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def clients() -> AsyncIterator[None]:
        yield
        for each in writers:
            each.transport.abort()
        await asyncio.sleep(0)
        writers.clear()

    async def connected(server: Any) -> None:
        before = len(server.peers)
        writers.append((await asyncio.open_connection(*address(server)))[1])
        await until(lambda: len(server.peers) > before)

    async def send(source: Source, count: int) -> None:
        await connected(source)
        writers[-1].write(b'{"n": 1}\n' * count)

    check_source(made("tcp_server", port=0), produce=send, peer=clients)
    check_sink(made("tcp_server", port=0), VALUES, invalid=UNWRITABLE, connected=connected, peer=clients)


@checks("udp_server")
def udp_server(_: Peers) -> None:
    async def send(source: Source, count: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for _ in range(count):
                out.sendto(b'{"n": 1}', address(source))

    check_source(made("udp_server", port=0), produce=send, redelivers=False)


@checks("udp_client")
def udp_client(_: Peers) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.setblocking(False)

        async def written(_: Sink) -> list[Any]:
            return [json.loads(peer.recv(1000)) for _ in range(2 * len(VALUES))]

        check_sink(made("udp_client", port=peer.getsockname()[1]), VALUES, written=written)
        check_sink(made("udp_client", port=peer.getsockname()[1]), VALUES, invalid=UNWRITABLE)


@checks("syslog")
def syslog(_: Peers) -> None:
    values = [{"msg": str(number)} for number in range(5)]

    async def send(source: Any, count: int) -> None:
        _, writer = await asyncio.open_connection(*address(source))
        writer.write(b"<14>hello\n" * count)
        writer.close()

    check_source(made("syslog", port=0, transport="tcp"), produce=send, redelivers=False)
    peer = LinePeer()
    peer.port = free_port()
    make = made("syslog", port=peer.port, transport="tcp", framing="newline")
    check_sink(make, values, invalid=[*UNWRITABLE, {"msg": "a\nb"}], peer=peer.running)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        check_sink(made("syslog", port=receiver.getsockname()[1]), values, invalid=UNWRITABLE)


# -- HTTP ----------------------------------------------------------------------------------------------------
class HttpPeer:
    """A server that stores the bodies of requests; a bulk API; websockets."""

    def __init__(self) -> None:
        self.port = free_port()
        self.values: list[Any] = []
        self._sockets: list[web.WebSocketResponse] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/", self._hello)
        app.router.add_post("/", self._store)
        app.router.add_post("/_bulk", self._bulk)
        app.router.add_get("/ws", self._websocket)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _hello(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _store(self, request: web.Request) -> web.Response:
        self.values.append(await request.json())
        return web.Response()

    async def _bulk(self, request: web.Request) -> web.Response:
        lines = [json.loads(each) for each in (await request.text()).splitlines()]
        self.values += lines[1::2]
        return web.json_response({"items": [{"index": {"status": 201}} for _ in lines[::2]]})

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        one = web.WebSocketResponse()
        await one.prepare(request)
        self._sockets.append(one)
        async for message in one:
            self.values.append(json.loads(message.data))
        return one

    async def send(self, _source: Source, count: int) -> None:
        await until(lambda: self._sockets)
        for _ in range(count):
            await self._sockets[-1].send_str('{"n": 1}')

    async def written(self, _: Sink) -> list[Any]:
        await until(lambda: len(self.values) >= 2 * len(VALUES))
        return self.values


@checks("http_client")
def http_client(_: Peers) -> None:
    peer = HttpPeer()
    make = made("http_client", url=f"http://127.0.0.1:{peer.port}/")
    check_sink(make, VALUES, invalid=UNWRITABLE, written=peer.written, peer=peer.running)


@checks("elastic")
def elastic(_: Peers) -> None:
    peer = HttpPeer()
    make = made("elastic", url=f"http://127.0.0.1:{peer.port}", index="i")
    check_sink(make, VALUES, invalid=[*UNWRITABLE, "text"], written=peer.written, peer=peer.running)


@checks("http_server")
def http_server(_: Peers) -> None:
    """Only the source: the sink answers requests that the source of the same flow has received."""
    tasks: list[asyncio.Future[None]] = []

    async def send(source: Source, count: int) -> None:
        async def post() -> None:
            async with aiohttp.ClientSession() as session, session.post(url, json={"n": 1}) as response:
                assert response.status in (200, 503)

        url = cast("Any", source).context.described["url"]
        tasks.extend(asyncio.ensure_future(post()) for _ in range(count))
        await asyncio.sleep(0.1)

    check_source(made("http_server", port=0), produce=send, redelivers=False)


@checks("otlp")
def otlp(_: Peers) -> None:
    pytest.importorskip("opentelemetry.proto", reason="it needs tidelog[flows-otlp]")
    tasks: list[asyncio.Future[None]] = []

    async def send(source: Source, count: int) -> None:
        async def post() -> None:
            record = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a"}}]}]}]}
            async with aiohttp.ClientSession() as session, session.post(f"{url}v1/logs", json=record) as response:
                assert response.status in (200, 503)

        url = cast("Any", source).context.described["url"]
        tasks.extend(asyncio.ensure_future(post()) for _ in range(count))
        await until(lambda: cast("Any", source).stored == count or all(each.done() for each in tasks))

    check_source(made("otlp", port=0), produce=send, redelivers=False)


@checks("websocket_client")
def websocket_client(_: Peers) -> None:
    peer = HttpPeer()
    make = made("websocket_client", url=f"ws://127.0.0.1:{peer.port}/ws")
    check_source(make, produce=peer.send, peer=peer.running, redelivers=None)
    check_sink(make, VALUES, invalid=UNWRITABLE, written=peer.written, peer=peer.running)


@checks("websocket_server")
def websocket_server(_: Peers) -> None:
    sessions: list[Any] = []

    @contextlib.asynccontextmanager
    async def clients() -> AsyncIterator[None]:
        yield
        for each in sessions:
            await each.close()
        sessions.clear()

    async def connected(connector: Any) -> None:
        session = aiohttp.ClientSession()
        sessions.append(session)
        sessions.append(await session.ws_connect(connector.context.described["url"]))
        await until(lambda: connector.peers)

    async def send(source: Source, count: int) -> None:
        await connected(source)
        for _ in range(count):
            await sessions[-1].send_str('{"n": 1}')

    check_source(made("websocket_server", port=0), produce=send, redelivers=False, peer=clients)
    check_sink(made("websocket_server", port=0), VALUES, invalid=UNWRITABLE, connected=connected, peer=clients)


# -- programs --------------------------------------------------------------------------------------------------
@checks("subprocess")
def subprocess(peers: Peers) -> None:
    log, out = peers.path / "program.log", peers.path / "program.out"
    log.touch()

    async def produce(_: Source, count: int) -> None:
        with log.open("a") as file:
            file.writelines(f'{{"n": {number}}}\n' for number in range(count))

    async def written(_: Sink) -> list[Any]:
        await until(lambda: out.read_text().count("\n") >= 2 * len(VALUES))
        return [json.loads(line) for line in out.read_text().splitlines()]

    check_source(made("subprocess", args=["tail", "-n", "+1", "-F", str(log)]), produce=produce)
    make = made("subprocess", args=["sh", "-c", f"cat >> {out}"])
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written)
    make = made("subprocess", args=["tee", "-a", str(out)], acknowledge=True)
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written)


# -- databases -----------------------------------------------------------------------------------------------
@checks("sql")
def sql(peers: Peers) -> None:
    path = peers.path / "shop.db"
    url = f"sqlite:///{path}"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE source (id INTEGER PRIMARY KEY, n INTEGER)")
        database.execute("CREATE TABLE target (n INTEGER)")

        async def produce(_: Source, count: int) -> None:
            database.executemany("INSERT INTO source (n) VALUES (?)", [(number,) for number in range(count)])

        async def written(_: Sink) -> list[Any]:
            return [{"n": number} for (number,) in database.execute("SELECT n FROM target")]

        query = "SELECT id, n FROM source WHERE id > :cursor ORDER BY id"
        position = str(peers.path / "position")
        make = made("sql", url=url, query=query, cursor="id", start=0, position=position, every="5ms")
        check_source(make, produce=produce, redelivers=True)
        check_sink(made("sql", url=url, table="target"), VALUES, invalid=[*UNWRITABLE, {"m": 1}], written=written)


@checks("sql_query")
def sql_query(peers: Peers) -> None:
    path = peers.path / "queried.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE target (n INTEGER)")

        async def written(_: Sink) -> list[Any]:
            return [{"n": number} for (number,) in database.execute("SELECT n FROM target")]

        make = made("sql_query", url=f"sqlite:///{path}", query="INSERT INTO target VALUES (:n)")
        check_sink(make, VALUES, invalid=[*UNWRITABLE, {"m": 1}, {"n": object()}], written=written)


@checks("object_store")
def object_store(peers: Peers) -> None:
    incoming, outgoing = peers.path / "incoming", peers.path / "outgoing"
    incoming.mkdir()

    async def produce(_: Source, count: int) -> None:
        half = incoming / ".half"
        half.write_text("".join(f"{json.dumps({'n': number})}\n" for number in range(count)))
        half.rename(incoming / f"{time.time_ns()}.jsonl")

    async def written(_: Sink) -> list[Any]:
        return [json.loads(line) for path in outgoing.iterdir() for line in path.read_text().splitlines()]

    position = str(peers.path / "objects.position")
    make = made("object_store", url=f"file://{incoming}/", position=position, every="5ms")
    check_source(make, produce=produce, redelivers=True)
    make = made("object_store", url=f"file://{outgoing}/{{unique}}.jsonl", object_age="5ms")
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written)
