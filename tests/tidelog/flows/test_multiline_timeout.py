"""The ``timeout`` of ``multiline``: a message ends if no data arrives, in each source that reads a stream."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.tidelog.flows.byteskit import Reader, running
from tests.tidelog.flows.netkit import url_of
from tests.waiting import until
from tidelog.flows.connectors.files.stdio import StdioConnector
from tidelog.flows.runtime.runningflow import RunningFlow

Send = Callable[[bytes], Awaitable[None]]


def options(timeout: str | None = "50ms", **more: Any) -> dict[str, Any]:
    return {"codec": "string", "preprocessors": [{"multiline": {"start": "^[A-Z]", "timeout": timeout}}], **more}


@asynccontextmanager
async def sending(kind: str, one: RunningFlow, directory: Path) -> AsyncIterator[Send]:
    """Yield a function that sends bytes to the source of a flow."""
    if kind == "websocket_server":
        async with aiohttp.ClientSession() as session, session.ws_connect(await url_of(one)) as socket:
            yield socket.send_bytes
        return
    if kind == "unix":
        _, writer = await asyncio.open_unix_connection(directory / "socket")
    else:
        host, _, port = str(one.graph.connectors["in"].context.described["address"]).rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
    try:
        yield lambda data: _written(writer, data)
    finally:
        writer.close()


async def _written(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.parametrize("kind", ["tcp_server", "unix", "websocket_server"])
def test_a_message_ends_without_the_next_one(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        more: dict[str, Any] = {"unixsocket": str(tmp_path / "socket")} if kind == "unix" else {"port": 0}
        reader = Reader("tcp_server" if kind == "unix" else kind, **options(**more))
        async with running(reader.flow) as one, sending(kind, one, tmp_path) as send:
            await send(b"ERROR a\n  at b\nINFO c\n  d\n")
            await until(lambda: reader.values == ["ERROR a\n  at b", "INFO c\n  d"])
            await send(b"INFO e\n  incomplete")
            await until(lambda: reader.values[2:] == ["INFO e"])
            await send(b" line\nINFO f\n")
            await until(lambda: reader.values[3:] == ["  incomplete line", "INFO f"])

    asyncio.run(main())


def test_a_client_and_a_silent_peer() -> None:
    """``idle_timeout`` counts from the last bytes, also if a message has ended in the meantime."""

    async def main() -> None:
        peers: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"ERROR a\n  at b\n")
            peers.append(writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            quick = {"retry": {"first": "10ms", "most": "10ms"}}
            reader = Reader(
                "tcp_client", **options(port=port, host="127.0.0.1", idle_timeout="200ms", reconnect=quick)
            )
            async with running(reader.flow) as one:
                await until(lambda: reader.values == ["ERROR a\n  at b"] * 2)  # of the second connection
                assert "nothing was received for 0.2 s" in one.graph.connections["in"].error
            for each in peers:
                each.close()

    asyncio.run(main())


def test_the_output_of_a_program() -> None:
    async def main() -> None:
        code = "import time\nprint('ERROR a\\n  at b', flush=True)\ntime.sleep(600)"
        reader = Reader("subprocess", **options(args=[sys.executable, "-c", code], stop_timeout="0s"))
        async with running(reader.flow):
            await until(lambda: reader.values == ["ERROR a\n  at b"])

    asyncio.run(main())


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(StdioConnector, "stdin", read)

    async def main() -> None:
        reader = Reader("stdio", **options())
        async with running(reader.flow):
            os.write(write, b"ERROR a\n  at b\n")
            await until(lambda: reader.values == ["ERROR a\n  at b"])
            os.write(write, b"INFO c\n")
            await until(lambda: len(reader.values) == 2)

    try:
        asyncio.run(main())
    finally:
        os.close(read)
        os.close(write)


def test_without_a_timeout_a_message_ends_with_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        reader = Reader("tcp_server", **options(None, port=0))
        async with running(reader.flow) as one, sending("tcp_server", one, tmp_path) as send:
            await send(b"INFO a\nINFO b\n")
            await until(lambda: reader.values == ["INFO a"])
            await send(b"INFO c\n")
            await until(lambda: reader.values == ["INFO a", "INFO b"])

    asyncio.run(main())
