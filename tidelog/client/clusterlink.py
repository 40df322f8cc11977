"""``ClusterLink``: whether the servers of a client are a cluster of several groups, and the connections to them.

A client begins with one pool, to one server or to the leader, and sends everything there. It reads the map of a
cluster when a server redirects a call (MOVED), or before a command that concerns all members, if HELLO said
``mode:cluster``. If other groups than that of its servers have slots, the client routes all further calls. Other
servers cost no round trip.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import redis
import redis.asyncio
from redis.exceptions import MovedError

from tidelog.transport.access import Access
from tidelog.transport.call import Call, Value
from tidelog.transport.clusterpools import AsyncClusterPools, ClusterPools, denied
from tidelog.transport.pools import LeaderMovedError
from tidelog.transport.slots import MemberAddress

#: Commands that concern the keys of all members, or that no member redirects (PUBLISH).
SPANNING: Final = frozenset({"SCAN", "KEYS", "DBSIZE", "RANDOMKEY", "FLUSHALL", "FLUSHDB", "PUBLISH"})
MOVES: Final = (MovedError, LeaderMovedError)  # see ``is_move``


class _Link:
    """The common part of both kinds."""

    def __init__(self, where: str | Access, options: dict[str, Any], pool: Any) -> None:
        self._where, self._options, self._pool = where, options, pool
        self._single = False  # whether the servers are known not to be a cluster
        self._asked = False  # whether a member has returned its map
        self.adopt: Callable[[Any], None] = lambda _: None  # notifies the client of ``routed``

    def _is_cluster(self, connection: Any) -> bool | None:
        """Return whether HELLO said that the server is part of a cluster; None if HELLO was not sent (RESP2)."""
        hello = connection.handshake_metadata
        if not hello:
            return None
        mode = hello.get(b"mode") or hello.get("mode")
        self._single = mode not in (b"cluster", "cluster")
        return not self._single

    def _refused(self, error: redis.ResponseError, known: bool | None) -> None:
        """Handle a server that does not return its map. Raises the error if it is part of a cluster."""
        if known:
            raise denied(error) from None
        self._single = True


def is_move(error: Any) -> bool:
    """Return whether a server replied with MOVED. A LeaderMovedError can also be a READONLY reply."""
    return isinstance(error.moved if isinstance(error, LeaderMovedError) else error, MovedError)


class ClusterLink(_Link):
    """For ``Client``. Threads may share it."""

    def __init__(self, where: str | Access, options: dict[str, Any], pool: redis.ConnectionPool) -> None:
        super().__init__(where, options, pool)
        self._lock = threading.Lock()
        self.routed: ClusterPools | None = None  # None: one server, or one group

    def find(self) -> ClusterPools | None:
        """Read the map, unless it is known. Returns the connections of a cluster of several groups, else None.

        Raises redis.RedisError if the map can't be read.
        """
        with self._lock:
            if self.routed is None:
                pools = ClusterPools(self._where, self._options, self._pool)
                needed = pools.routing_needed()
                self._asked = True
                if needed:
                    self.routed = pools
                    self.adopt(pools)
        return self.routed

    def found(self) -> ClusterPools | None:
        """Do the same after a redirection. A refusal names the permissions that are missing."""
        try:
            return self.find()
        except redis.ResponseError as error:
            raise denied(error) from None

    def detect(self, once: bool = False) -> ClusterPools | None:
        """Return what ``find`` does, before a call that concerns all members, or a pipeline that can't be repeated.

        With ``once``, the map of one group is not read again. If groups are added, a redirection will show that.
        """
        if self.routed is not None or self._single or (once and self._asked):
            return self.routed
        connection = self._pool.get_connection()
        self._pool.release(connection)
        known = self._is_cluster(connection)
        if known is False:
            return None
        try:
            return self.find()
        except redis.ResponseError as error:
            self._refused(error, known)
        return None

    def close(self) -> None:
        """Close the connections to members."""
        if self.routed is not None:
            self.routed.close()


class AsyncClusterLink(_Link):
    """For ``AsyncClient``."""

    def __init__(self, where: str | Access, options: dict[str, Any], pool: redis.asyncio.ConnectionPool) -> None:
        super().__init__(where, options, pool)
        self._lock = asyncio.Lock()
        self.routed: AsyncClusterPools | None = None

    async def find(self) -> AsyncClusterPools | None:
        """See ``ClusterLink.find``."""
        async with self._lock:
            if self.routed is None:
                pools = AsyncClusterPools(self._where, self._options, self._pool)
                needed = await pools.routing_needed()
                self._asked = True
                if needed:
                    self.routed = pools
                    self.adopt(pools)
        return self.routed

    async def found(self) -> AsyncClusterPools | None:
        """See ``ClusterLink.found``."""
        try:
            return await self.find()
        except redis.ResponseError as error:
            raise denied(error) from None

    async def detect(self, once: bool = False) -> AsyncClusterPools | None:
        """See ``ClusterLink.detect``."""
        if self.routed is not None or self._single or (once and self._asked):
            return self.routed
        connection = await self._pool.get_connection()
        await self._pool.release(connection)
        known = self._is_cluster(connection)
        if known is False:
            return None
        try:
            return await self.find()
        except redis.ResponseError as error:
            self._refused(error, known)
        return None

    async def close(self) -> None:
        """Close the connections to members."""
        if self.routed is not None:
            await self.routed.close()


def address_of(connection: Any) -> MemberAddress:
    """Return the address of the server at the other end; that of a unix socket is empty."""
    return MemberAddress(getattr(connection, "host", ""), getattr(connection, "port", 0))


def as_call(args: tuple[Any, ...]) -> Call[Any]:
    """Return a command of redis-py, whose name may have two words in one argument, as a call."""
    head: tuple[Value, ...] = tuple(args[0].split()) if isinstance(args[0], str) else (args[0],)
    return Call((*head, *args[1:]), lambda reply: reply)
