"""``AsyncClient``: the commands of tidelog-server for asyncio. It works as ``Client`` does."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
import redis.asyncio

from tidelog.client.calls import IdLike
from tidelog.client.client import PAGE, packed
from tidelog.client.commands import Commands
from tidelog.client.entries import Entry
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.transport.call import Call, Name, is_sent, read_all, read_one
from tidelog.transport.errors import translated
from tidelog.transport.pools import pool_options

T = TypeVar("T")


async def _reply(_: Any, connection: Any, command_name: str | bytes, **options: Any) -> Any:  # noqa: ARG001
    """Replace redis-py's parse_response: no callbacks, and bytes are not decoded."""
    block: int | None = options["block"]
    if block is None:
        return await connection.read_response(disable_decoding=True)
    patience: float | None = connection.socket_timeout
    # In redis.asyncio, None means the socket timeout, and infinity means no timeout.
    timeout = math.inf if block == 0 or patience is None else patience + block / 1000
    return await connection.read_response(disable_decoding=True, timeout=timeout)


class _Raw(redis.asyncio.Redis):
    """Sends one command at a time."""

    parse_response = _reply


class _Pipeline(redis.asyncio.client.Pipeline):
    """Sends several commands at once, without redis-py's handling of commands that are never sent this way."""

    parse_response = _reply

    async def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> list[Any]:  # noqa: ARG002
        await connection.send_packed_command(b"".join([packed(connection, *command) for command in commands]))
        replies: list[Any] = []
        for args, options in commands:
            try:
                replies.append(await self.parse_response(connection, args[0], **options))
            except redis.ResponseError as error:
                replies.append(error)
        return replies


class AsyncClient(Commands):
    """A client of tidelog-server for asyncio. Tasks may share it. Arguments and errors are those of ``Client``.

    >>> async with AsyncClient("redis://localhost:6379") as client:
    ...     await client.tappend("weather", {"city": "Catania", "celsius": 31.5})

    Cancelling a task in a ``tread`` closes its connection. Entries that a group is delivering at that time count as
    delivered: they are redelivered only if the read had ``retry``.
    """

    def __init__(self, url: str | Access = DEFAULT_URL, *, trace_context: bool = False, **options: Any) -> None:
        self.trace_context = trace_context
        single = options.pop("single_connection_client", False)
        pool = redis.asyncio.ConnectionPool(**pool_options(url, options, redis.asyncio))
        made = redis.asyncio.Redis(connection_pool=pool, single_connection_client=single)
        made.auto_close_connection_pool = True
        self._use(made)

    def _use(self, client: redis.asyncio.Redis) -> None:
        self.redis = client
        self._raw: Any = _Raw(connection_pool=client.connection_pool)

    @classmethod
    def over(cls, client: redis.asyncio.Redis, *, trace_context: bool = False) -> Self:
        """Return a client over the connections of a redis.asyncio.Redis; see ``Client.over``."""
        self = cls.__new__(cls)
        self.trace_context = trace_context
        self._use(client)
        return self

    async def run(self, call: Call[T]) -> T:
        """Send a call, built by a function of ``tidelog.client.calls``, and return its result."""
        if not call.args:
            return call.read(None)
        if call.packed is not None:
            (result,) = await self.together(call)
            done: T = result
            return done
        try:
            reply = await self._raw.execute_command(*call.args, block=call.block)
        except redis.ResponseError as error:
            raise translated(error) from None
        return read_one(call, reply)

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection; see ``Client.together``."""
        pipeline: Any = _Pipeline(self.redis.connection_pool, {}, False, None)
        for call in filter(is_sent, calls):
            pipeline.execute_command(*call.args, block=call.block, packed=call.packed)
        return read_all(calls, await pipeline.execute(raise_on_error=False), raise_on_error)

    async def close(self) -> None:
        """Close all connections."""
        await self.redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def pages(
        self, key: Name, start: IdLike = "-", end: IdLike = "+", size: int = PAGE
    ) -> AsyncIterator[list[Entry]]:
        """Read a range of any size in lists of up to ``size`` entries, oldest first. Bounds are as for ``trange``."""
        while page := await self.trange(key, start, end, size):
            yield page
            start = f"({page[-1].id}"
