"""Readers disconnect at random while the server is killed at random. No reader has a gap or a duplicate."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.crash.storms import MINUTES, new_seed
from tests.tidelog.gateway.gatewaykit import Caller, ids_until_end, visit
from tidelog.gateway import application, events, tails
from tidelog.gateway.application import GatewayServer
from tidelog.testing import Server, running_server

S = "/v1/streams/chat"


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 300)
def test_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (tails, "RETAINED", 2000), (tails, "BATCH", 1000), (tails, "FRESH", 0.2), (events, "RANGE", 700),
        (application, "SWEPT", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)  # readers often fall behind
    end = time.monotonic() + 60 * MINUTES
    seed = new_seed()
    with running_server() as server:
        while time.monotonic() < end:
            storm(server, seed)
            seed += 1


def storm(server: Server, seed: int) -> None:
    """Append entries and kill the server, with six readers."""
    chance = random.Random(seed)
    with server.client() as client:
        client.redis.flushall()

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        appended: list[str] = []

        async def append() -> None:
            for n in range(60):
                size, number = chance.choice((1, 300, 3000)), chance.choice((1, 1, 7))
                entries = [{"n": n, "x": "x" * size}] * number
                appended.extend(await caller.append("chat", *entries, Idempotency_Key=f"{seed}-{n}"))
                if chance.random() < 0.04:
                    server.kill()
                    await asyncio.to_thread(server.start)
            appended.extend(await caller.append("chat", {"end": 1}, Idempotency_Key=f"{seed}-end"))

        _, *found = await asyncio.gather(append(), *(ids_until_end(caller, S, chance) for _ in range(6)))
        assert found == [appended] * 6

    visit(server, test)
