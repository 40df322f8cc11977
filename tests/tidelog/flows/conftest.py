"""Fixtures of the tests of flows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.conftest import RedisServer
from tests.tidelog.flows.sqlkit import SqlPeers


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a redis-server."""
    return f"redis://127.0.0.1:{redis_server.port}"


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Any]:
    """A client of it, which returns bytes."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlPeers]:
    """PostgreSQL, MariaDB, and SQLite. A server of MariaDB takes seconds to create, so there is one for all tests."""
    with ExitStack() as stack:
        yield SqlPeers(stack, tmp_path_factory.mktemp("sql"))
