"""A gateway on a real server, and its clients."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from tests.waiting import PATIENCE
from tidelog.gateway.application import GatewayOptions, GatewayServer
from tidelog.testing import Server
from tidelog.transport.access import Access

NEVER = aiohttp.ClientTimeout(total=None)
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


@dataclass
class Event:
    """A server-sent event."""

    name: str
    data: Any
    id: str


class Events:
    """A client of an event stream, which reads as the standard says. ``position``: its Last-Event-ID."""

    def __init__(self, caller: Caller, path: str, position: str = "") -> None:
        self._caller = caller
        self._path = path
        self.position = position
        self.retry = 0
        self.comments: list[str] = []
        self.answer: Any = None
        self._rest = b""
        self._lines_read: deque[bytes] = deque()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Events]:
        headers = {"Accept": "text/event-stream"}
        if self._caller.user is not None:
            headers["Authorization"] = self._caller.user
        if self.position:
            headers["Last-Event-ID"] = self.position
        async with self._caller.session.get(self._caller.raw(self._path), headers=headers, timeout=NEVER) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            self.answer = answer
            self._rest = b""
            self._lines_read.clear()
            yield self

    async def __aiter__(self) -> AsyncIterator[Event]:
        name, data, position = "message", "", self.position
        async for line in self._lines():
            field, _, value = line.partition(": ")
            if line.startswith(":"):
                self.comments.append(line)
            elif field == "id":
                position = value
            elif field == "event":
                name = value
            elif field == "data":
                data += value
            elif field == "retry":
                self.retry = int(value)
            elif not line:
                self.position = position
                if data:
                    yield Event(name, json.loads(data), position)
                name, data = "message", ""

    async def _lines(self) -> AsyncIterator[str]:
        while True:
            while self._lines_read:
                yield self._lines_read.popleft().decode()
            part = await self.answer.content.readany()
            if not part:
                return
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._lines_read.extend(lines)

    async def take(self, number: int) -> list[Event]:
        """Return the next events."""
        found: list[Event] = []
        async with asyncio.timeout(PATIENCE):
            async for event in self:
                found.append(event)
                if len(found) == number:
                    break
        return found


async def ids_until_end(caller: Caller, path: str, chance: random.Random) -> list[str]:
    """Read a stream up to the entry with the field ``end``, and disconnect at random. Returns the IDs."""
    found: list[str] = []
    reader = Events(caller, f"{path}?after=0.0")
    while True:
        async with reader.open(), asyncio.timeout(PATIENCE):
            async for event in reader:
                found.append(event.id)
                if "end" in event.data["fields"]:
                    return found
                if chance.random() < 0.03:
                    break
