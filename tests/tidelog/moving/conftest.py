from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tidelog.moving.movekit import Peer, running_redis


@pytest.fixture(scope="session")
def _peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    directory = tmp_path_factory.mktemp("peers")
    with running_redis(directory) as one, running_redis(directory) as other:
        yield one, other


@pytest.fixture
def source(_peers: tuple[Peer, Peer]) -> Peer:
    """A redis-server without keys."""
    _peers[0].client.flushall()
    return _peers[0]


@pytest.fixture
def target(_peers: tuple[Peer, Peer]) -> Peer:
    """Another one."""
    _peers[1].client.flushall()
    return _peers[1]
