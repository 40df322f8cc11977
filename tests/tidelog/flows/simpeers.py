"""Sinks of the simulation that send requests one by one: ``http_client`` itself, with a peer that is made up.

ok         answers
501        answers 501, always
closed     answers a few requests; from then on nothing listens
refuses    nothing listens, from the beginning
hangs      never answers
sometimes  answers 503 now and then
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.tidelog.flows.simoperators import ids
from tidelog.flows.api.connectoroptions import ReconnectOptions
from tidelog.flows.api.errors import RetryError
from tidelog.flows.connectors.http.client import HttpClient, HttpClientOptions
from tidelog.flows.connectors.http.requests import HttpResponse
from tidelog.options.units import PositiveDuration

if TYPE_CHECKING:
    from tests.tidelog.flows.simulation import World

MANNERS = ("ok", "501", "closed", "refuses", "hangs", "sometimes")


def peer_options(reconnect: ReconnectOptions) -> HttpClientOptions:
    return HttpClientOptions(
        url="http://127.0.0.1:1/", reconnect=reconnect, request_timeout=PositiveDuration(0.5), concurrency=3
    )


class Peer(HttpClient):
    """Where the requests of a sink go. Each has the numbers of the events in its body."""

    def __init__(self, options: HttpClientOptions, world: World, name: str, manner: str) -> None:
        super().__init__(options)
        self.world = world
        self.name = name
        self.manner = manner
        self.answered = 0

    async def connect(self) -> None:
        await asyncio.sleep(self.world.pause())
        await self.reach()
        self._shut = False
        self.limit.open()

    async def reach(self) -> None:
        await asyncio.sleep(self.world.pause())
        if self.manner == "refuses" or (self.manner == "closed" and self.answered > 3):
            raise ConnectionRefusedError("nobody listens")

    async def call(self, method: str, url: Any, body: bytes | None, headers: Mapping[str, str]) -> HttpResponse:
        await asyncio.sleep(self.world.pause())
        chance = self.world.loop.random
        self.answered += 1
        if self.manner == "hangs":
            await asyncio.sleep(self._options.request_timeout)
            raise RetryError("no reply")
        if self.manner == "closed" and self.answered > 3:
            error = ConnectionRefusedError("nobody listens")
            self.suspect(error)
            raise RetryError(str(error))
        if self.manner == "501" or (self.manner == "sometimes" and chance.random() < 0.3):
            return HttpResponse(501, {}, b"")
        for number in ids(json.loads(body or b"")):
            self.world.delivered[self.name][number] += 1
        return HttpResponse(200, {}, b"")
