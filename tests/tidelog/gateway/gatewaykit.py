"""A gateway on a real server, and its clients."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
from yarl import URL

from tidelog.gateway.application import GatewayOptions, GatewayServer
from tidelog.testing import Server
from tidelog.transport.access import Access

PASSWORD = "a password"
ALL = ("~*", "&*", "+@all")


def add_user(server: Server, name: str, *rules: str) -> None:
    """Create an ACL user with the password PASSWORD."""
    with server.client() as client:
        client.redis.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *(rules or ALL))


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[GatewayServer]:
    """A gateway on a free port."""
    gateway = GatewayServer(GatewayOptions(Access.of(url), **({"listen": "127.0.0.1:0"} | options)))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@contextmanager
def started(url: str, port: int = 0) -> Iterator[tuple[asyncio.AbstractEventLoop, GatewayServer]]:
    """A gateway in a thread, with its event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> GatewayServer:
        return await stack.enter_async_context(serving(url, listen=f"127.0.0.1:{port}"))

    try:
        yield loop, asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Caller:
    """An HTTP client of a gateway. ``user``: the user of its requests; None: no credentials."""

    def __init__(self, session: aiohttp.ClientSession, url: str, user: str | None = None) -> None:
        self.session = session
        self.url = url
        self.user = user

    def as_user(self, name: str, password: str = PASSWORD) -> Caller:
        made = Caller(self.session, self.url)
        made.user = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
        return made

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:  # fmt: skip
        """Send a request. body: bytes, or a value for JSON. Returns status, body, headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.user is not None:
            named.setdefault("Authorization", self.user)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            named.setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.raw(path), data=body, headers=named) as answer:
            text = await answer.read()
            is_json = answer.content_type in ("application/json", "application/problem+json") and text
            return answer.status, json.loads(text) if is_json else text, answer.headers

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        return await self.call("POST", path, body, **headers)

    async def append(self, key: str, *entries: dict[str, Any], **headers: str) -> list[str]:
        status, found, _ = await self.post(f"/v1/streams/{key}", [{"fields": each} for each in entries], **headers)
        assert status in (200, 201), found
        ids: list[str] = found["ids"]
        return ids

    def raw(self, path: str) -> Any:
        """Return a URL without changing its encoding."""
        return URL(self.url + path, encoded=True)


def visit(
    server: Server | str, test: Callable[[Caller, GatewayServer], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run a test with a client of a gateway. server: the one that it serves, or its URL."""

    async def main() -> None:
        async with (
            serving(server if isinstance(server, str) else server.url, **options) as gateway,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 14) as session,
        ):
            await test(Caller(session, gateway.url), gateway)

    asyncio.run(main())
