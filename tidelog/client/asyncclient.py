"""``AsyncClient``: the commands of tidelog-server for asyncio. It works as ``Client`` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
import redis.asyncio

from tidelog.client.asyncroutedredis import AsyncRoutedRedis
from tidelog.client.calls import IdLike
from tidelog.client.client import PAGE
from tidelog.client.clusterlink import MOVES, AsyncClusterLink, address_of, is_move
from tidelog.client.commands import Commands
from tidelog.client.entries import Entry
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.transport.call import Call, Name, fill_in, is_sent, read_all, read_one, read_outcome
from tidelog.transport.clusterpools import AsyncClusterPools, answered
from tidelog.transport.errors import translated
from tidelog.transport.pools import LeaderMovedError, pool_options
from tidelog.transport.rawcalls import packed, read_reply_async
from tidelog.transport.slots import MemberAddress

T = TypeVar("T")


class _Raw(redis.asyncio.Redis):
    """Sends one command at a time."""

    parse_response = read_reply_async


class _Pipeline(redis.asyncio.client.Pipeline):
    """Sends several commands at once, without redis-py's handling of commands that are never sent this way."""

    moved: MemberAddress | None = None  # the server, if it redirected one of the commands
    parse_response = read_reply_async

    async def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> list[Any]:  # noqa: ARG002
        await connection.send_packed_command(b"".join([packed(connection, *command) for command in commands]))
        replies: list[Any] = []
        to_leader = False
        connection.in_pipeline = True
        try:
            for args, options in commands:
                try:
                    replies.append(await self.parse_response(connection, args[0], **options))
                except MOVES as error:
                    replies.append(error)
                    self.moved, to_leader = address_of(connection), isinstance(error, LeaderMovedError)
                except redis.ResponseError as error:
                    replies.append(error)
        finally:
            connection.in_pipeline = False
        if to_leader:
            await connection.disconnect()  # the next one looks for the leader
        return replies


class _RoutedRaw:
    """Sends one command at a time, to the member of its keys."""

    def __init__(self, pools: AsyncClusterPools) -> None:
        self._pools = pools

    async def execute_command(self, *args: Any, block: int | None) -> Any:
        (reply,) = await self._pools.send([Call(args, lambda reply: reply, block)])
        if isinstance(reply, Exception):
            raise reply
        return reply


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
        made = AsyncRoutedRedis(connection_pool=pool, single_connection_client=single)
        made.auto_close_connection_pool = True
        made.link = AsyncClusterLink(url, options, pool)
        self._use(made, made.link)
        made.link.adopt = self._adopt

    def _use(self, client: redis.asyncio.Redis, link: AsyncClusterLink | None) -> None:
        self.redis = client
        self._link = link
        self._routed: AsyncClusterPools | None = None  # None: calls are sent to one server, or to the leader
        self._raw: Any = _Raw(connection_pool=client.connection_pool)

    @classmethod
    def over(cls, client: redis.asyncio.Redis, *, trace_context: bool = False) -> Self:
        """Return a client over the connections of a redis.asyncio.Redis; see ``Client.over``."""
        self = cls.__new__(cls)
        self.trace_context = trace_context
        self._use(client, None)
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
        except MOVES as error:
            if not is_move(error) or not await self._route():
                raise
            return await self.run(call)
        except redis.ResponseError as error:
            raise translated(error) from None
        return read_one(call, reply)

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection; see ``Client.together``."""
        if self._routed is not None:
            return read_all(calls, answered(await self._routed.send(list(filter(is_sent, calls)))), raise_on_error)
        pipeline: Any = _Pipeline(self.redis.connection_pool, {}, False, None)
        for call in filter(is_sent, calls):
            pipeline.execute_command(*call.args, block=call.block, packed=call.packed)
        replies = await pipeline.execute(raise_on_error=False)
        if pipeline.moved is not None:
            replies = await self._redirected(calls, pipeline.moved, replies)
        return read_all(calls, replies, raise_on_error)

    async def outcomes(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls as ``together`` does. Each error takes the place of a result.

        In a cluster of several groups, a lost connection is an error of the calls that were sent on it. With one
        server, it is raised.
        """
        if self._routed is None:
            return await self.together(*calls, raise_on_error=False)
        sent = list(filter(is_sent, calls))
        replies = await self._routed.send(sent)
        return fill_in(calls, [read_outcome(call, reply) for call, reply in zip(sent, replies, strict=True)])

    async def _redirected(self, calls: Sequence[Call[Any]], asked: MemberAddress, replies: list[Any]) -> list[Any]:
        """Send the calls that a server redirected to other groups. Without other groups, raises a connection error."""
        found = [reply.moved if isinstance(reply, LeaderMovedError) else reply for reply in replies]
        pools = await self._route() if any(map(is_move, found)) else None
        if pools is not None:
            return answered(await pools.send(list(filter(is_sent, calls)), (asked, found)))
        return answered(replies)

    async def _route(self) -> AsyncClusterPools | None:
        """Route all further calls, if the servers are a cluster of several groups."""
        return await self._link.found() if self._link is not None else None

    async def several_groups(self) -> bool:
        """See ``Client.several_groups``."""
        return self._link is not None and await self._link.detect(once=True) is not None

    def _adopt(self, pools: AsyncClusterPools) -> None:
        self._routed, self._raw = pools, _RoutedRaw(pools)

    async def close(self) -> None:
        """Close all connections."""
        if self._link is not None:
            await self._link.close()
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
