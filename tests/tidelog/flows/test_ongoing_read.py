"""A read that continues while pulls are interrupted: its result, its error, and its end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.tidelog.flows.serverkit import in_loop
from tidelog.flows.api.connector import Source
from tidelog.flows.connectors.ongoingread import OngoingRead


class Peer:
    """A source whose reads end when the test opens the gate."""

    def __init__(self) -> None:
        self.source = Source()
        self.read: OngoingRead[int] = OngoingRead(self.source.wait)
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.reads = 0

    async def one(self) -> int:
        self.reads += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.reads

    async def interrupted(self) -> None:
        """A pull that is interrupted while its read is in progress."""
        pull = asyncio.create_task(self.read.result(self.one))
        await asyncio.sleep(0.01)
        self.source.interrupt()
        assert await pull is None
        assert self.reads == 1


@in_loop
async def test_the_next_pull_returns_the_result() -> None:
    peer = Peer()
    await peer.interrupted()
    peer.gate.set()
    assert await peer.read.result(peer.one) == 1
    assert await peer.read.result(peer.one) == 2


@in_loop
async def test_the_next_pull_raises_the_error_once() -> None:
    peer = Peer()
    peer.error = ConnectionError("lost")
    await peer.interrupted()
    peer.gate.set()
    with pytest.raises(ConnectionError, match="lost"):
        await peer.read.result(peer.one)
    peer.error = None
    assert await peer.read.result(peer.one) == 2


@in_loop
async def test_an_error_that_no_pull_raises_is_not_logged_by_asyncio() -> None:
    logged: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["message"]))
    peer = Peer()
    peer.error = ConnectionError("lost while the source was paused")
    await peer.interrupted()
    peer.gate.set()
    await asyncio.sleep(0.01)
    await peer.read.cancel()
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []


@in_loop
async def test_a_read_in_progress_is_cancelled() -> None:
    peer = Peer()
    await peer.interrupted()
    await peer.read.cancel()
    peer.gate.set()
    assert await peer.read.result(peer.one) == 2
