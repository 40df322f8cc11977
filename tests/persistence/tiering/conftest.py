"""A server whose store is copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from respserver.testing import start_in_thread
from tests.persistence.tiering.kit import TieredServer


@pytest.fixture
def data(tmp_path: Path) -> Iterator[TieredServer]:
    """A server with nodes of ten entries, and an empty target."""
    with start_in_thread(tmp_path / "data", stream_node_max_entries="10") as running:
        target = tmp_path / "target"
        target.mkdir()
        server = TieredServer(running.port, tmp_path / "data", target)
        yield server
        server.client.close()
