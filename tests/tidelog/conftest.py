"""Fixtures of the package's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.client import Client
from tidelog.testing import Server, tidelog_process, tidelog_server

__all__ = ["tidelog_process", "tidelog_server"]


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    """A client of the server."""
    with tidelog_server.client() as client:
        yield client
