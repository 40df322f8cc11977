from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog import Client
from tidelog.testing import Server


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        yield client
