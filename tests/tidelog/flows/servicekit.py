"""Flows in one process, and their HTTP API as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tidelog.flows.files import read_text
from tidelog.flows.service.api import FlowApiServer
from tidelog.flows.service.host import DeployedFlow, FlowHost

LONG = 20.0  # s that anything may take
MAIN = """
flows:
  main:
    connectors: {in: "null", out: "null"}
    pipelines: {echo: []}
    connect: [in -> echo -> out]
"""


def deployed(text: str, server: str | None = None) -> list[DeployedFlow]:
    document = read_text(text, server=server, variables={})
    return [DeployedFlow(spec, "file", document.given[name]) for name, spec in document.flows.items()]


class Asked:
    """An answer."""

    def __init__(self, status: int, body: Any, headers: Any) -> None:
        self.status = status
        self.body = body
        self.headers = headers


class Client:
    """Asks the API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> Asked:
        async with self.session.request(method, self.url + path, json=json, **options) as answer:
            text = await answer.read()
            body = await answer.json() if answer.content_type == "application/json" else text.decode()
            return Asked(answer.status, body, answer.headers)


@asynccontextmanager
async def hosted(
    text: str = "flows: {}", server: str | None = None, *, local: bool = False, wait: bool = True, name: str = "default"
) -> AsyncIterator[FlowHost]:
    """A host with the flows of a text, started."""
    host = FlowHost(server, name, local=local)
    starting = asyncio.create_task(host.start(deployed(text, server)))
    try:
        if wait:
            async with asyncio.timeout(LONG):
                await starting
        yield host
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await host.stop()


@asynccontextmanager
async def served(host: FlowHost, token: str | None = None) -> AsyncIterator[Client]:
    """The API of a host, with a client."""
    server = FlowApiServer(host, "127.0.0.1:0", token)
    await server.start()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            yield Client(session, server.url)
    finally:
        await server.stop()


def flowing(test: Callable[[Client, FlowHost], Awaitable[None]], text: str = MAIN, **options: Any) -> None:
    """Run a test with a host of the flows in a text, and its API."""

    async def main() -> None:
        token = options.pop("token", None)
        async with hosted(text, **options) as host, served(host, token) as ask:
            await test(ask, host)

    asyncio.run(main())
