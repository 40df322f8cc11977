"""Programs that nobody here wrote, unchanged, on tidelog-server: from PyPI, npm and Debian.

Each test takes the fixture ``target`` and so runs twice: against this machine's redis-server, which shows that the
program and the test are right, and against tidelog-server. Tests of what redis-server 7.0 does not have yet take
``ours``; tests that compare answers word for word take ``both``.

    FastStream, taskiq-redis, walrus, redis-streams   the extra `foreign`, which `scripts/test` installs
    node-redis, ioredis                               `npm ci` into pytest's cache, where node and npm are there
    redis-py's tests of RedisCluster                  PyPI, into pytest's cache; `scripts/test long`
    redis-cli, prometheus-redis-exporter              Debian's packages, which `scripts/test` installs as root

What is not there is skipped, and that is said aloud. Left out, because they need more than streams, strings and locks:
arq (sorted sets; it also wants a redis-py below 6), streaq (Lua scripts of its own, sorted sets, hashes), taskiq's
ListQueueBroker (lists), broadcaster and eventiq (their Redis backends are plain PUBLISH and SUBSCRIBE).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.foreign.servers import RealRedis, Target
from tidelog.testing import Server, running_server


@pytest.fixture(scope="session")
def _real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    server = RealRedis(tmp_path_factory.mktemp("redis"))
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def _ours() -> Iterator[Server]:
    with running_server() as server:
        yield server


def _emptied(server: Target) -> Target:
    server.start()
    with redis.Redis(port=server.port) as client:
        client.flushall()
    return server


@pytest.fixture(params=["redis-server", "tidelog-server"])
def target(request: pytest.FixtureRequest) -> Target:
    """A server without keys. Tests may kill it and start it again."""
    return _emptied(request.getfixturevalue("_real" if request.param == "redis-server" else "_ours"))


@pytest.fixture
def ours(_ours: Server) -> Target:
    """tidelog-server without keys."""
    return _emptied(_ours)


@pytest.fixture
def both(_real: RealRedis, _ours: Server) -> tuple[Target, Target]:
    """redis-server and tidelog-server, both without keys."""
    return _emptied(_real), _emptied(_ours)
