"""The proxies of a storm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from tests.storm.network import Network
from tests.waiting import until

Test = Callable[[Network, int], Awaitable[None]]


def run(story: Test, source: str | None = "c") -> None:
    """Run a test with the port of a proxy in front of the place ``s``, which sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        network = Network(lambda name: os.getpid() if name == "s" else None)
        try:
            async with asyncio.timeout(20):
                await story(network, await network.listen("s", server.sockets[0].getsockname()[1], source))
        finally:
            await network.close()
            server.close()

    asyncio.run(main())


async def asked(port: int) -> bytes:
    """Return what comes back; nothing if the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"hello")
        return await reader.read(5)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def test_bytes_pass() -> None:
    async def story(network: Network, port: int) -> None:
        assert await asked(port) == b"hello"
        assert network.passed == 10

    run(story)


def test_a_silent_direction_holds_bytes_until_it_is_healed() -> None:
    async def story(network: Network, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for direction in (("c", "s"), ("s", "c")):
            network.silence(*direction)
            writer.write(b"hello")
            reply = asyncio.create_task(reader.read(5))
            await asyncio.wait([reply], timeout=0.1)  # nothing can be awaited: nothing must happen
            assert not reply.done()
            network.silence(*direction, silent=False)
            assert await reply == b"hello"
        network.silence("c", "s")
        late = asyncio.create_task(asked(port))
        await asyncio.wait([late], timeout=0.1)
        assert not late.done(), "a new connection gets no answer"
        network.heal()
        assert await late == b"hello"
        writer.close()

    run(story)


def test_a_link_that_is_cut_or_reset() -> None:
    async def story(network: Network, port: int) -> None:
        for reset in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            assert await reader.read(5) == b"hello"
            network.close_link("s", "c", reset)
            try:
                assert await reader.read(1) == b""
            except ConnectionResetError:
                assert reset
            writer.close()
        network.cut.add(frozenset(("c", "s")))
        assert await asked(port) == b""
        network.heal()
        assert await asked(port) == b"hello"

    run(story)


def test_a_member_is_recognized_by_its_process() -> None:
    async def story(network: Network, port: int) -> None:
        network.silence("s", "s")  # this process is the member s
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        await until(lambda: network.directions)
        network.heal()
        assert await reader.read(5) == b"hello"
        assert set(network.directions) == {("s", "s")}
        writer.close()

    run(story, None)
