"""Fixtures of the tests of flows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.conftest import RedisServer


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a redis-server."""
    return f"redis://127.0.0.1:{redis_server.port}"


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Any]:
    """A client of it, which returns bytes."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
