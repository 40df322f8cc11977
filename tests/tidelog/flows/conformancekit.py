"""For the checks of connectors with the conformance kit: their registry, and the servers that they use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RedisServer
from tidelog import Client
from tidelog.flows import registry
from tidelog.options.structs import Problems, read
from tidelog.testing import Server

VALUES: list[Any] = [{"n": number} for number in range(5)]
UNWRITABLE: list[Any] = [object()]  # no codec can encode it


def made(name: str, **options: Any) -> Callable[[], Any]:
    """A function that creates a connector of a type."""
    kind = registry.connector(name)
    problems = Problems()
    given = read(kind.Options, options, name, problems)
    assert given is not None, problems.found
    return lambda: kind(given)


Check = Callable[["Peers"], None]
CHECKS: dict[str, list[Check]] = {}


def checks(name: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS.setdefault(name, []).append(check)
        return check

    return add


class Peers:
    """What the checks use of the test session."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self._request = request
        self.path = tmp_path

    @property
    def tidelog(self) -> str:
        server: Server = self._request.getfixturevalue("tidelog_server")
        return server.url

    @property
    def client(self) -> Client:
        client = Client(self.tidelog)
        self._request.addfinalizer(client.close)
        return client

    @property
    def redis(self) -> str:
        server: RedisServer = self._request.getfixturevalue("redis_server")
        return f"redis://127.0.0.1:{server.port}"
