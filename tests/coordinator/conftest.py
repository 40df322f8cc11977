"""Each kind of coordinator, with a shared store that several members connect to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from coordinator.directory import DirectoryCoordinator
from coordinator.interface import Coordinator
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from tidelog.flows.testing.virtualloop import VirtualLoop


class Place(Protocol):
    """Where the members of a test meet."""

    shortest: int  # milliseconds of the shortest lease that expires about when it should
    late: float  # seconds that a lease may last longer

    def connect(self) -> Coordinator:
        """Return another member's coordinator."""
        ...

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a test; close the coordinators."""
        ...


class _Base:
    def __init__(self) -> None:
        self.connected: list[Coordinator] = []

    async def _all(self, story: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(60):
                await story
        finally:
            for each in self.connected:
                await each.close()

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._all(story))


class DirectoryPlace(_Base):
    shortest = 300
    late = 0.5  # the machine is busy

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def connect(self) -> Coordinator:
        self.connected.append(DirectoryCoordinator(self.path, timeout=20))
        return self.connected[-1]


class SimulatedPlace(_Base):
    shortest = 300
    late = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.store = SimulatedStore()

    def connect(self) -> Coordinator:
        self.connected.append(SimulatedCoordinator(self.store, delay=lambda: 0.0001))
        return self.connected[-1]

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        virtual(self._all(story))


def virtual(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "directory": lambda request: DirectoryPlace(request.getfixturevalue("tmp_path") / "coordinator"),
    "simulated": lambda _: SimulatedPlace(),
}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param](request)
