"""``Client``: the commands of tidelog-server over redis-py. ``AsyncClient`` is the same for asyncio.

redis-py provides connection pools (many threads can share a client), TLS, unix sockets, RESP2 and RESP3. Two things
differ from redis-py on purpose:

- A command is sent once. redis-py repeats a command if its reply was lost, which would append an entry twice. Pass
  ``retry=redis.retry.Retry(...)`` to restore that behavior.
- A read with ``block`` waits for the full time, regardless of the socket timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import TracebackType
from typing import Any, Self, TypeVar

import redis

from tidelog.client.calls import IdLike
from tidelog.client.clusterlink import MOVES, ClusterLink, address_of, is_move
from tidelog.client.commands import Commands
from tidelog.client.entries import Entry
from tidelog.client.routedredis import RoutedRedis
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.transport.call import Call, Name, is_sent, read_all, read_one
from tidelog.transport.clusterpools import ClusterPools, answered
from tidelog.transport.errors import translated
from tidelog.transport.pools import LeaderMovedError, access_of, pool_options
from tidelog.transport.rawcalls import LOST, packed, read_reply
from tidelog.transport.routing import is_redirection
from tidelog.transport.slots import MemberAddress

PAGE = 1000  # entries per command when a range is read in pages
_PLACES = ("host", "port", "path", "db", "unix_socket_path", "credential_provider")

T = TypeVar("T")


class _Raw(redis.Redis):
    """Sends one command at a time."""

    parse_response = read_reply


class _Pipeline(redis.client.Pipeline):
    """Sends several commands at once, without redis-py's handling of commands that are never sent this way."""

    moved: MemberAddress | None = None  # the server, if it redirected one of the commands
    parse_response = read_reply

    def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> list[Any]:  # noqa: ARG002
        connection.send_packed_command([packed(connection, *command) for command in commands])
        replies: list[Any] = []
        to_leader = False
        connection.in_pipeline = True
        try:
            for args, options in commands:
                try:
                    replies.append(self.parse_response(connection, args[0], **options))
                except MOVES as error:
                    replies.append(error)
                    self.moved, to_leader = address_of(connection), isinstance(error, LeaderMovedError)
                except redis.ResponseError as error:
                    replies.append(error)
        finally:
            connection.in_pipeline = False
        if to_leader:
            connection.disconnect()  # the next one looks for the leader
        return replies


class _RoutedRaw:
    """Sends one command at a time, to the member of its keys."""

    def __init__(self, pools: ClusterPools) -> None:
        self._pools = pools
        self._members: dict[redis.ConnectionPool, _Raw] = {}

    def execute_command(self, *args: Any, block: int | None) -> Any:
        member, before = self._pools.routes.single_owner(args), None
        if member is not None:
            try:
                return self._at(member).execute_command(*args, block=block)  # type: ignore[no-untyped-call]
            except redis.ResponseError as error:
                if not is_redirection(error):
                    raise
                before = member, [error]
            except LOST:
                self._pools.routes.stale = True
                raise
        (reply,) = self._pools.send([Call(args, lambda reply: reply, block)], before)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _at(self, member: MemberAddress) -> _Raw:
        pool = self._pools.pool(member)
        found = self._members.get(pool)
        if found is None:
            if len(self._members) > 2 * len(self._pools.routes.leaders):  # some are those of earlier leaders
                self._members.clear()
            found = self._members[pool] = _Raw(connection_pool=pool)
        return found


def _access_of(url: str | Access, options: Mapping[str, Any]) -> Access | None:
    """Return the Access that connects like redis-py with these options; None if options can't be converted."""
    found = access_of(url)
    if any(name.startswith("ssl") or name in _PLACES for name in options):
        return None
    user = {name: options[name] for name in ("username", "password") if options.get(name) is not None}
    if user and found.address(found.urls[0]).password is None:
        return replace(found, **user)
    return found


class Client(Commands):
    """A client of tidelog-server. Threads may share it.

    >>> with Client("redis://localhost:6379") as client:
    ...     client.tappend("weather", {"city": "Catania", "celsius": 31.5})

    ``url`` is an Access or a text that ``Access.of`` accepts: redis://, rediss:// (TLS) or unix://, with user, password
    and options, several URLs, or Sentinels. Keyword arguments are those of redis-py; options in a URL take precedence.
    With ``trace_context``, ``tappend``, ``tappev``, ``tdelay``, ``tmappend`` and ``tstage`` add the fields
    ``traceparent`` and ``tracestate`` to each entry while an OpenTelemetry span is current, unless the entry has such a
    field.
    ``client.redis`` is a redis.Redis over the same connections, for all other commands.
    In a [cluster](clusters.md) of several groups, each call is sent to the leader of the group that has its keys.

    Commands raise redis.ConnectionError and redis.TimeoutError if the server does not answer. The server may have
    executed the command anyway. If the server refuses a command, redis.ResponseError or one of its subclasses
    NoGroupError, NoStageError, StaleEpochError and ConflictError is raised, with the server's text.
    """

    def __init__(self, url: str | Access = DEFAULT_URL, *, trace_context: bool = False, **options: Any) -> None:
        self.trace_context = trace_context
        single = options.pop("single_connection_client", False)
        self._access = _access_of(url, options)
        pool = redis.ConnectionPool(**pool_options(url, options, redis))
        made = RoutedRedis(connection_pool=pool, single_connection_client=single)
        made.auto_close_connection_pool = True
        made.link = ClusterLink(url, options, pool)
        self._use(made, made.link)
        made.link.adopt = self._adopt

    def _use(self, client: redis.Redis, link: ClusterLink | None) -> None:
        self.redis = client
        self._link = link
        self._routed: ClusterPools | None = None  # None: calls are sent to one server, or to the leader
        self._raw: Any = _Raw(connection_pool=client.connection_pool)

    @classmethod
    def over(cls, client: redis.Redis, *, trace_context: bool = False) -> Self:
        """Return a client over the connections of a redis.Redis, such as one that a Sentinel object returned.

        >>> sentinel = Sentinel([("10.0.0.1", 26379), ("10.0.0.2", 26379)])
        >>> client = Client.over(sentinel.master_for("tide", retry=Retry(NoBackoff(), 0)))

        The ``retry`` in the example keeps commands from being repeated after a lost reply. Such a client does not route
        calls in a cluster of several groups.
        """
        self = cls.__new__(cls)
        self.trace_context = trace_context
        self._access = None
        self._use(client, None)
        return self

    def run(self, call: Call[T]) -> T:
        """Send a call, built by a function of ``tidelog.client.calls``, and return its result."""
        if not call.args:
            return call.read(None)
        if call.packed is not None:
            (result,) = self.together(call)
            done: T = result
            return done
        try:
            reply = self._raw.execute_command(*call.args, block=call.block)
        except MOVES as error:
            if not is_move(error) or not self._route():
                raise
            return self.run(call)
        except redis.ResponseError as error:
            raise translated(error) from None
        return read_one(call, reply)

    def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection, without waiting in between, and return their results.

        >>> entry_id, replicas = client.together(calls.tappend("weather", {"city": "Oslo"}), calls.wait(1, 1000))

        If the server refuses a call, it executes the others anyway. Then the first error is raised. Without
        ``raise_on_error``, each error takes the place of its result.

        In a cluster of several groups, the calls for each group are sent to its leader, in order, to all leaders at the
        same time.
        """
        if self._routed is not None:
            return read_all(calls, answered(self._routed.send(list(filter(is_sent, calls)))), raise_on_error)
        pipeline: Any = _Pipeline(self.redis.connection_pool, {}, False, None)
        for call in filter(is_sent, calls):
            pipeline.execute_command(*call.args, block=call.block, packed=call.packed)
        replies = pipeline.execute(raise_on_error=False)
        if pipeline.moved is not None:
            replies = self._redirected(calls, pipeline.moved, replies)
        return read_all(calls, replies, raise_on_error)

    def _redirected(self, calls: Sequence[Call[Any]], asked: MemberAddress, replies: list[Any]) -> list[Any]:
        """Send the calls that a server redirected to other groups. Without other groups, raises a connection error."""
        found = [reply.moved if isinstance(reply, LeaderMovedError) else reply for reply in replies]
        pools = self._route() if any(map(is_move, found)) else None
        if pools is not None:
            return answered(pools.send(list(filter(is_sent, calls)), (asked, found)))
        return answered(replies)

    def _route(self) -> ClusterPools | None:
        """Route all further calls, if the servers are a cluster of several groups."""
        return self._link.found() if self._link is not None else None

    def _adopt(self, pools: ClusterPools) -> None:
        self._routed, self._raw = pools, _RoutedRaw(pools)

    def several_groups(self) -> bool:
        """Return whether the servers are a cluster of several groups. The first call asks a server in cluster mode."""
        return self._link is not None and self._link.detect(once=True) is not None

    def pool_of(self, calls: Sequence[Call[Any]]) -> redis.ConnectionPool:
        """Return the pool of the server for these calls. Raises CrossGroupError if they are for several groups."""
        pools = self._link.detect() if self._link is not None else None
        if pools is None:
            return self.redis.connection_pool
        if pools.routes.stale:
            pools.reload()
        return pools.pool(pools.routes.owner_of_calls(calls) or pools.routes.leaders[0])

    def redirected(self) -> None:
        """Read the map of the cluster before the next request, because a member of ``pool_of`` has redirected one."""
        if self._routed is not None:
            self._routed.routes.stale = True

    def close(self) -> None:
        """Close all connections."""
        if self._link is not None:
            self._link.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def to_arrow(
        self, name: str, start: IdLike = "-", end: IdLike = "+", schema: Any = None, *, history: str = "auto"
    ) -> Any:
        """Return the rows of a stream or a topic between two IDs or times, both included, as Arrow batches.

        >>> client.to_arrow("weather").to_pandas()

        Returns a ``tidelog.arrow.rows.ArrowRows``. See ``to_arrow`` there for columns, types, and errors. Needs the
        extra ``arrow``. The rows are read over a connection of their own. Raises ValueError if this client was not
        created with a URL or an Access, or if its connections need other options than user and password.
        """
        if self._access is None:
            raise ValueError("to_arrow() needs a client of a URL or an Access, without other options for connections")
        return import_module("tidelog.arrow.rows").to_arrow(self._access, name, start, end, schema, history=history)

    def pages(self, key: Name, start: IdLike = "-", end: IdLike = "+", size: int = PAGE) -> Iterator[list[Entry]]:
        """Read a range of any size in lists of up to ``size`` entries, oldest first. Bounds are as for ``trange``."""
        while page := self.trange(key, start, end, size):
            yield page
            start = f"({page[-1].id}"
