"""What tests of the server's parts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.respserver.local import LocalServer, Peer


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this thread, without sockets."""
    server = LocalServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def one(local: LocalServer) -> Peer:
    """A client."""
    return local.connect()


@pytest.fixture
def writer(local: LocalServer) -> Peer:
    """A client that never waits."""
    return local.connect()
