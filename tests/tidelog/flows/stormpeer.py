"""An HTTP peer that flows send to: it records what it answers by 200, and behaves badly when told to."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from tests.tidelog.flows.stormflows import Case

WAYS: Final = ("ok", "slow", "hang", "busy", "cut", "cut_late")


class Peer:
    """Listens on one port, which stays the same. ``way``: how it behaves; chance decides for each request."""

    def __init__(self, cases: Mapping[str, Case], chance: random.Random) -> None:
        self.way = "ok"
        self.share = 1.0  # of requests that are treated so
        self.port = 0
        self._cases = cases
        self._chance = chance
        self._runner: web.AppRunner | None = None
        self._let_go = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        if self._runner is not None:
            return
        app = web.Application()
        app.router.add_post("/{flow}/{sink}", self._take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self._runner = runner
        if not self.port:
            self.port = runner.addresses[0][1]

    async def close(self) -> None:
        """Connections are refused from now on."""
        runner, self._runner = self._runner, None
        self.behave("ok")
        if runner is not None:
            await runner.cleanup()

    def behave(self, way: str, share: float = 1.0) -> None:
        self.way, self.share = way, share
        self._let_go.set()
        self._let_go = asyncio.Event()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        case = self._cases[request.match_info["flow"]]
        try:
            value = json.loads(await request.read())
        except (ConnectionError, ValueError):
            case.failed += 10
            raise
        found = list(case.found(request.match_info["sink"], value))
        way = self.way if self._chance.random() < self.share else "ok"
        if way in ("busy", "cut"):
            case.failed += len(found)
            if way == "busy":
                return web.Response(status=503)
            return self._cut(request)
        if way == "slow":
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        elif way == "hang":
            case.failed += len(found)  # it may not be waited for so long
            try:
                async with asyncio.timeout(self._chance.uniform(0.5, 3.0)):
                    await self._let_go.wait()
            except TimeoutError:
                pass
        case.delivered.update(found)
        if way == "cut_late":
            case.failed += len(found)
            return self._cut(request)
        return web.Response(status=200)

    def _cut(self, request: web.Request) -> web.StreamResponse:
        transport: Any = request.transport
        if transport is not None:
            transport.abort()
        return web.Response(status=500)
