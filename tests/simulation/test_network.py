"""The simulated loop and network themselves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation.network import WINDOW, NetworkLoop, SimTransport
from tests.simulation.simloop import Process

pytestmark = pytest.mark.quick


class End(asyncio.Protocol):
    """One end of a connection: records what happens to it."""

    def __init__(self) -> None:
        self.got = b""
        self.events: list[str] = []
        self.transport: SimTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(type(exc).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Pair:
    """A client and a server that are connected."""

    def __init__(self, loop: NetworkLoop) -> None:
        self.loop = loop
        self.client = loop.process("client", "1.1.1.1")
        self.server = loop.process("server", "2.2.2.2")
        self.mine, self.its = End(), End()

    async def connect(self) -> None:
        async def listen() -> None:
            await self.loop.create_server(lambda: self.its, "2.2.2.2", 1)

        async def reach() -> None:
            sock = socket.socket()
            await self.loop.sock_connect(sock, ("2.2.2.2", 1))
            await self.loop.create_connection(lambda: self.mine, sock=sock)

        await self.server.start(listen())
        await self.client.start(reach())


def simulated(story: Callable[[Pair], Awaitable[None]], seed: int = 0) -> None:
    loop = NetworkLoop(seed)
    pair = Pair(loop)

    async def main() -> None:
        await pair.connect()
        await story(pair)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_bytes_arrive_in_order_and_later() -> None:
    async def story(pair: Pair) -> None:
        data = bytes(range(256)) * 400
        for at in range(0, len(data), 1000):
            pair.mine.transport.write(data[at : at + 1000])
        assert pair.its.got == b""
        await asyncio.sleep(2)
        assert pair.its.got == data

    for seed in range(5):
        simulated(story, seed)


def test_a_one_way_partition_blocks_one_way_and_loses_nothing() -> None:
    async def story(pair: Pair) -> None:
        pair.loop.network.blocked.add(("1.1.1.1", "2.2.2.2"))
        pair.mine.transport.write(b"to the server")
        pair.its.transport.write(b"to the client")
        await asyncio.sleep(5)
        assert (pair.its.got, pair.mine.got) == (b"", b"to the client")
        pair.loop.network.blocked.clear()
        await asyncio.sleep(1)
        assert pair.its.got == b"to the server"

    simulated(story)


def test_a_peer_that_does_not_read_fills_the_window_and_pauses_the_writer() -> None:
    async def story(pair: Pair) -> None:
        pair.its.transport.pause_reading()
        pair.mine.transport.write(bytes(3 * WINDOW))
        await asyncio.sleep(1)
        assert pair.mine.events == ["pause"]
        assert pair.mine.transport.get_write_buffer_size() == 2 * WINDOW
        pair.its.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.mine.events == ["pause", "resume"]
        assert len(pair.its.got) == 3 * WINDOW

    simulated(story)


def test_a_killed_process_sends_what_was_on_the_way_and_an_end() -> None:
    async def story(pair: Pair) -> None:
        pair.mine.transport.write(b"last words")
        _kill(pair, pair.client, power=False)
        await asyncio.sleep(1)
        assert (pair.its.got, pair.its.events) == (b"last words", ["eof", "NoneType"])
        assert pair.mine.events == []

    simulated(story)


def test_a_machine_without_power_sends_no_end_and_resets_after_its_restart() -> None:
    async def story(pair: Pair) -> None:
        pair.loop.network.down.add("1.1.1.1")
        _kill(pair, pair.client, power=True)
        pair.its.transport.write(b"are you there?")
        await asyncio.sleep(10)
        assert pair.its.events == []
        pair.loop.network.down.clear()
        await asyncio.sleep(1)
        assert pair.its.events == ["ConnectionResetError"]

    simulated(story)


def _kill(pair: Pair, process: Process, power: bool) -> None:
    process.die()
    pair.loop.network.process_killed(process, power)


def test_nobody_listens() -> None:
    async def story(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.loop.network.connect(pair.client, ("2.2.2.2", 2))

    simulated(story)


def test_a_paused_process_runs_nothing_while_the_clock_goes_on() -> None:
    async def story(pair: Pair) -> None:
        pair.server.paused = True
        pair.mine.transport.write(b"x")
        began = pair.loop.virtual
        await asyncio.sleep(5)
        assert pair.its.got == b""
        assert pair.loop.virtual - began >= 5
        pair.server.paused = False
        await asyncio.sleep(0.01)
        assert pair.its.got == b"x"

    simulated(story)


def test_the_clock_of_a_process_may_drift() -> None:
    async def story(pair: Pair) -> None:
        loop = pair.loop
        fast = loop.process("fast", "3.3.3.3", rate=1.25)
        began, found = loop.virtual, []

        async def wait() -> None:
            before = loop.time()
            await asyncio.sleep(5)
            found.append(loop.time() - before)

        await fast.start(wait())
        assert found[0] == pytest.approx(5, abs=0.001)
        assert loop.virtual - began == pytest.approx(4, abs=0.001)

    simulated(story)


def test_callbacks_of_one_process_run_in_order_and_those_of_two_in_any() -> None:
    orders = set()
    for seed in range(20):
        ran: list[str] = []

        async def story(pair: Pair, ran: list[str] = ran) -> None:
            for at in range(3):
                pair.client.call(ran.append, f"c{at}")
                pair.server.call(ran.append, f"s{at}")
            await asyncio.sleep(0.1)

        simulated(story, seed)
        assert [each for each in ran if each[0] == "c"] == ["c0", "c1", "c2"]
        orders.add(tuple(ran))
    assert len(orders) > 3
