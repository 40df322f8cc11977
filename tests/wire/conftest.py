"""A server on a hand-moved clock, and raw connections to it; one server for all tests of a file, beside Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.alike import Bytes, Pair
from tests.wire.rawclient import Raw


@pytest.fixture
def hand() -> Iterator[RunningServer]:
    """Time stands still until ``hand.advance(ms)``."""
    with start_in_thread(clock=HandClock(), enable_debug_command="yes") as server:
        yield server


@pytest.fixture
def connect(hand: RunningServer) -> Iterator[Callable[..., Raw]]:
    """connect(proto=2) opens one more connection to ``hand``."""
    opened: list[Raw] = []

    def connect(proto: int = 2) -> Raw:
        opened.append(Raw(hand.port, proto))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.close()


@pytest.fixture
def c(connect: Callable[..., Raw]) -> Raw:
    """One RESP2 connection."""
    return connect()


@pytest.fixture(scope="module")
def one_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """One for all tests of a file, with the file's ``SETTINGS``, if there are any."""
    with start_in_thread(**getattr(request.module, "SETTINGS", {})) as running:
        yield running


@pytest.fixture
def emptied(one_server: RunningServer) -> RunningServer:
    """The one for all tests of this file, without keys."""
    with Raw(one_server.port) as client:
        assert client("FLUSHALL") == b"OK"
    return one_server


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def pair(request: pytest.FixtureRequest, emptied: RunningServer, redis_server: Any) -> Iterator[Pair]:
    """A connection to ours and one to theirs."""
    made = Bytes(emptied.port, request.param), Bytes(redis_server.port, request.param)
    yield made
    for each in made:
        each.close()
