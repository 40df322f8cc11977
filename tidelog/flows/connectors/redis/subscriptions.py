"""The subscriptions of a source ``redis_pubsub``: on one connection, or at the leader of each group of a cluster.

In a cluster of tidelog, a message reaches the subscribers of one group: that of the leader to which PUBLISH was sent.
Where a publisher sends it depends on its client, and on the slots that its client has seen. A source that subscribes to
its channels and patterns at all leaders receives it in any case, also while slots move. Leaders that have slots now are
looked for every CHECK seconds. Redis delivers a message to the subscribers of all members, so one connection suffices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio

from tidelog.client.asyncclient import AsyncClient
from tidelog.flows.connectors.redis.base import BLOCK_MS
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.clusterpools import AsyncClusterPools
from tidelog.transport.slots import MemberAddress

CHECK: Final = 5.0  # seconds between two requests for the leaders


class Subscriptions:
    """Raises redis.RedisError, after which it must be closed."""

    def __init__(self, client: AsyncClient, channels: Sequence[str], patterns: Sequence[str]) -> None:
        self._redis: Any = client.redis
        self._channels, self._patterns = channels, patterns
        self._at: dict[MemberAddress | None, Any] = {}  # redis.asyncio.client.PubSub; None: one connection suffices
        self._reads: dict[MemberAddress | None, asyncio.Future[Any]] = {}
        self._check_at = 0.0  # loop time

    async def open(self) -> None:
        """Subscribe. Called again, it finds the leaders that have slots now."""
        self._check_at = asyncio.get_running_loop().time() + CHECK
        pools: AsyncClusterPools | None = await self._redis.link.detect()
        if pools is None:
            await self._subscribe_at({None: self._redis.connection_pool})
        elif pools.routes.table.of(("TAPPEND",)) is None:  # another server, such as Redis
            await self._subscribe_at({None: pools.pool(pools.routes.leaders[0])})
        else:
            pools.routes.stale = True
            await pools.reload()
            found: dict[MemberAddress | None, Any] = {leader: pools.pool(leader) for leader in pools.routes.leaders}
            slots = pools.routes.map
            if slots is not None and not slots.complete:  # a member that starts does not list the leader of its group
                found |= {member: None for member in self._at if member is not None and member not in found}
            await self._subscribe_at(found)

    async def next(self, limit: int) -> list[dict[str, Any]]:
        """Wait for messages, and return about ``limit`` from each leader at most; none after a while."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._check_at:
            await self.open()
        for member, subscription in self._at.items():
            if member not in self._reads:
                self._reads[member] = asyncio.ensure_future(subscription.get_message(timeout=BLOCK_MS / 1000))
        until = max(0.0, self._check_at - loop.time())
        await asyncio.wait(self._reads.values(), timeout=until, return_when=asyncio.FIRST_COMPLETED)
        found: list[dict[str, Any]] = []
        for member in [member for member, read in self._reads.items() if read.done()]:
            message = self._reads.pop(member).result()
            count = 0
            while message is not None:
                found.append(message)
                count += 1
                message = await self._at[member].get_message(timeout=0) if count < limit else None
        return found

    async def close(self) -> None:
        for member in list(self._at):
            await self._leave(member)

    async def _subscribe_at(self, members: Mapping[MemberAddress | None, Any]) -> None:
        """Subscribe with the pools of these members, and end the subscriptions at others.

        A leader that has become a replica also delivers the messages that the new leader receives.
        """
        for member in [member for member in self._at if member not in members]:
            await self._leave(member)
        for member, pool in members.items():
            if member in self._at:
                continue
            made = self._at[member] = redis.asyncio.Redis(connection_pool=pool).pubsub(ignore_subscribe_messages=True)
            if self._channels:
                await made.subscribe(*self._channels)
            if self._patterns:
                await made.psubscribe(*self._patterns)

    async def _leave(self, member: MemberAddress | None) -> None:
        read = self._reads.pop(member, None)
        await cancel_and_wait(read)
        if read is not None and not read.cancelled():
            read.exception()  # otherwise, asyncio would log that it was never retrieved
        await self._at.pop(member).aclose()
