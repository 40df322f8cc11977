"""A server on a hand-moved clock, and raw connections to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from respserver.testing import HandClock, RunningServer, start_in_thread
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
