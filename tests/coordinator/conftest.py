"""Each kind of coordinator, with a shared store that several members connect to."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from coordinator.connect import connect
from coordinator.directory import DirectoryCoordinator
from coordinator.interface import Coordinator
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from tests.coordinator.etcds import Etcds
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


class EtcdPlace(_Base):
    shortest = 2000
    late = 3.0

    def __init__(self, hosts: str) -> None:
        super().__init__()
        self.hosts = hosts

    def connect(self) -> Coordinator:
        self.connected.append(connect(f"etcd://{self.hosts}", timeout=10))
        return self.connected[-1]

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Each test begins with an empty etcd."""
        body = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
        urllib.request.urlopen(f"http://{self.hosts}/v3/kv/deleterange", body, timeout=20).close()
        super().run(story)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcds]:
    """A real etcd."""
    etcds = Etcds(tmp_path_factory.mktemp("etcd"))
    yield etcds
    etcds.close()


def virtual(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "etcd": lambda request: EtcdPlace(request.getfixturevalue("etcd").hosts),
    "directory": lambda request: DirectoryPlace(request.getfixturevalue("tmp_path") / "coordinator"),
    "simulated": lambda _: SimulatedPlace(),
}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param](request)
