"""Fixtures of the package's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tidelog.client import Client
from tidelog.testing import Server, tidelog_process, tidelog_server

__all__ = ["tidelog_process", "tidelog_server"]


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    """A client of the server."""
    with tidelog_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    """Two groups of one member each, which share the slots evenly."""
    with cluster() as servers:
        yield Groups(servers)
