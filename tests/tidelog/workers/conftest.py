"""Fixtures of the workers' tests."""

from __future__ import annotations

import pytest

from tidelog.testing import Server
from tidelog.workers import App


@pytest.fixture
def app(tidelog_server: Server) -> App:
    """An app without processors."""
    return App("shop", tidelog_server.url, lease=20.0, grace=20.0)
