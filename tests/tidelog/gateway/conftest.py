"""A gateway that the tests of refusals share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.tidelog.gateway.gatewaykit import Caller, started
from tidelog.testing import running_server


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    """Sends a request to a gateway: method, path, body, headers. Returns status, body, headers."""
    with running_server() as server, started(server.url) as (loop, served):

        async def call(*words: Any, **headers: str) -> tuple[int, Any, Any]:
            async with aiohttp.ClientSession() as session:
                return await Caller(session, served.url).call(*words, **headers)

        yield lambda *words, **headers: asyncio.run_coroutine_threadsafe(call(*words, **headers), loop).result(60)
