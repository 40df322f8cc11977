"""``AsyncRoutedRedis``: the redis.asyncio.Redis of an ``AsyncClient``. It works as ``RoutedRedis`` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.client import Pipeline, PubSub

from tidelog.client.clusterlink import MOVES, SPANNING, AsyncClusterLink, as_call, is_move
from tidelog.client.routedredis import (
    PATTERNS,
    SUBSCRIBING,
    called_back,
    channels_owner,
    channels_pool,
    owner_of,
    reader,
    results,
)
from tidelog.transport.clusterpools import AsyncClusterPools
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.rawcalls import LOST
from tidelog.transport.routing import ATTEMPTS, BACKOFF, is_redirection


class AsyncRoutedRedis(redis.asyncio.Redis):
    """See the module."""

    link: AsyncClusterLink

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.link.routed is None and not (args[0] in SPANNING and await self.link.detect()):
            try:
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except MOVES as error:
                if not is_move(error) or not await self.link.found():
                    raise
        pools = self.link.routed
        assert pools is not None  # noqa: S101 - found
        (reply,) = await pools.send([as_call(args)], read=reader(options))
        return called_back(self.response_callbacks, args[0], reply, options)

    async def scan_iter(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        pools = await self.link.detect()
        if pools is None:
            async for key in super().scan_iter(*args, **options):
                yield key
            return
        for member in pools.routes.leaders:
            async with redis.asyncio.Redis(connection_pool=pools.pool(member)) as single:
                async for key in single.scan_iter(*args, **options):
                    yield key

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> AsyncRoutedPipeline:
        made = AsyncRoutedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.link = self.link
        return made

    def pubsub(self, **options: Any) -> AsyncRoutedPubSub:
        made = AsyncRoutedPubSub(self.connection_pool, event_dispatcher=self._event_dispatcher, **options)
        made.link = self.link
        return made


class AsyncRoutedPipeline(Pipeline):
    """The pipeline of an AsyncRoutedRedis."""

    link: AsyncClusterLink

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        if self.connection is None and (pools := await self.link.detect(once=True)) is not None:  # WATCH
            self.connection_pool = pools.pool(owner_of(pools.routes, [(args, options)]))
        return await super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        whole = self.is_transaction or self.explicit_transaction
        if self.connection is not None or not commands:
            return await super().execute(raise_on_error)
        if await self.link.detect(once=True) is None:
            try:
                return await super().execute(raise_on_error)
            except MOVES as error:
                if not is_move(error) or not await self.link.found() or not whole:
                    raise
        pools = self.link.routed
        assert pools is not None  # noqa: S101 - found
        if whole:
            return await self._execute_whole(pools, commands, raise_on_error)
        try:
            replies = await pools.send([as_call(args) for args, _ in commands], read=reader({}))
            return results(self, commands, replies, raise_on_error)
        finally:
            await self.reset()  # type: ignore[no-untyped-call]

    async def _execute_whole(self, pools: AsyncClusterPools, commands: list[Any], raise_on_error: bool) -> list[Any]:
        """Execute a transaction on the member of its keys. A refused transaction is repeated as a whole."""
        for attempt in range(ATTEMPTS + 1):
            if pools.routes.stale:
                await pools.reload()
            self.connection_pool = pools.pool(owner_of(pools.routes, commands))
            self.command_stack = list(commands)
            try:
                return await super().execute(raise_on_error)
            except redis.ResponseError as error:
                if not is_redirection(error) or attempt == ATTEMPTS:
                    raise
                pools.routes.stale = True
                await asyncio.sleep(BACKOFF.delay(attempt + 1))
            except LOST:
                pools.routes.stale = True
                raise
        raise AssertionError("the last attempt returns or raises")


class AsyncRoutedPubSub(PubSub):
    """The subscriber of an AsyncRoutedRedis."""

    link: AsyncClusterLink

    async def execute_command(self, *args: Any) -> Any:
        pools = await self.link.detect()
        if pools is not None and args[0] == "PSUBSCRIBE":
            raise CrossGroupError(PATTERNS)
        if pools is not None and args[0] in SUBSCRIBING:
            if pools.routes.stale:
                await pools.reload()
            self.connection_pool = channels_pool(self, pools.pool(channels_owner(pools.routes, args)))
        return await super().execute_command(*args)
