"""``GroupLeaders``: the requests of a ``LeaderConnection`` in a cluster of several groups.

Rule 1: calls are routed as those of ``Client`` (``routing``). A long range is read over a connection of its own kind
        (``connection``) to the leader that has its key.
Rule 2: errors are those of a ``LeaderConnection``: OSError, and ReplyError with the text of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis

from tidelog.transport.access import Access
from tidelog.transport.call import Call, Name, fill_in, is_sent, read_one
from tidelog.transport.clusterpools import ClusterPools, denied
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_denied, message_of
from tidelog.transport.lookup import member_url
from tidelog.transport.pools import pool_options
from tidelog.transport.rawcalls import LOST, reply_error
from tidelog.transport.slots import MemberAddress


class GroupLeaders:
    """The leaders of the groups of a cluster. Not thread-safe. ``name``: of the connections in CLIENT LIST."""

    def __init__(self, access: Access, name: str) -> None:
        self._access: Final = access
        self._name: Final = name
        options = {"client_name": name}
        self._seeds = redis.ConnectionPool(**pool_options(access, options, redis))
        self._pools = ClusterPools(access, options, self._seeds)
        self._connections: dict[MemberAddress, BlockingConnection] = {}  # for ranges

    def read_map(self) -> int:
        """Read the map, and return how many groups have slots. Raises OSError, ReplyError."""
        with redis_errors():
            self._pools.reload()
        return len(self._pools.routes.leaders)

    def ask(self, calls: Sequence[Call[Any]], asked: BlockingConnection | None, replies: Sequence[Any]) -> list[Any]:
        """Return the results of calls; a ReplyError takes the place of a result. Raises OSError, ReplyError.

        ``asked``: a member that has already sent ``replies`` to the calls. Only redirected calls are sent then.
        """
        sent = list(filter(is_sent, calls))
        if sent and sent[0].args[0] == "WATCH":
            raise TypeError("WATCH needs run_alone: the next request may use another connection")
        answered = None
        if asked is not None:
            address = self._access.address(asked.url)
            answered = MemberAddress(address.host, address.port), [reply_error(reply) for reply in replies]
        with redis_errors():
            found = self._pools.send(sent, answered)
        for reply in found:
            if isinstance(reply, LOST):
                raise _converted(reply)
        return fill_in(calls, [
            _converted(reply) if isinstance(reply, redis.RedisError) else read_one(call, reply)
            for call, reply in zip(sent, found, strict=True)
        ])  # fmt: skip

    def leader(self, key: Name) -> BlockingConnection:
        """Return a connection to the leader of a key's slot. Raises OSError, ReplyError."""
        routes = self._pools.routes
        if routes.stale:
            self.read_map()
        with redis_errors():
            member = routes.owner(key)
        return self._connection(member)

    def leaders(self) -> list[BlockingConnection]:
        """Return a connection to the leader of each group that has slots now. Raises OSError, ReplyError."""
        routes = self._pools.routes
        routes.stale = True  # no request may have shown yet that a group has received its first slots
        self.read_map()
        if routes.map is None or not routes.map.complete:
            raise ConnectionError("some slots of the cluster have no leader at present")
        return [self._connection(member) for member in routes.leaders]

    def _connection(self, member: MemberAddress) -> BlockingConnection:
        routes = self._pools.routes
        found = self._connections.get(member)
        if found is None:
            routes.stale = True  # if no connection can be opened, another member may lead
            found = BlockingConnection(self._access, member_url(self._access, member), self._name)
            routes.stale = False
            self._connections[member] = found
        return found

    def close(self) -> None:
        """Close all connections. The next request opens others, and reads the map."""
        self._pools.routes.stale = True
        self._pools.close()
        self._seeds.disconnect()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


@contextmanager
def redis_errors() -> Iterator[None]:
    """Convert the errors of redis-py to those of a ``BlockingConnection``."""
    try:
        yield
    except redis.ResponseError as error:
        raise _converted(denied(error)) from None
    except redis.RedisError as error:
        raise _converted(error) from error


def _converted(error: Exception) -> OSError | ReplyError:
    """Return an error of redis-py as that of a ``BlockingConnection``."""
    if isinstance(error, redis.ResponseError) or is_denied(error):  # a wrong password is a ConnectionError of redis-py
        return ReplyError(message_of(error))
    return error if isinstance(error, OSError) else ConnectionError(str(error))
