"""``Client``: the commands of tidelog-server over redis-py. ``AsyncClient`` is the same for asyncio.

redis-py provides connection pools (many threads can share a client), TLS, unix sockets, RESP2 and RESP3. Two things
differ from redis-py on purpose:

- A command is sent once. redis-py repeats a command if its reply was lost, which would append an entry twice. Pass
  ``retry=redis.retry.Retry(...)`` to restore that behavior.
- A read with ``block`` waits for the full time, regardless of the socket timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import hiredis
import redis

from tidelog.client.calls import IdLike
from tidelog.client.commands import Commands
from tidelog.client.entries import Entry
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.transport.call import Call, Name, is_sent, read_all, read_one
from tidelog.transport.errors import translated
from tidelog.transport.pools import pool_options

PAGE = 1000  # entries per command when a range is read in pages

T = TypeVar("T")


def packed(connection: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bytes:
    """Return a queued command in RESP. Raises redis.DataError for an argument whose type can't be sent."""
    ready: bytes | None = options["packed"]
    if ready is None:
        try:
            ready = hiredis.pack_command(args)
        except TypeError:
            ready = b"".join(connection.pack_command(*args))  # its error names the argument
    return ready


def _reply(_: Any, connection: Any, command_name: str | bytes, **options: Any) -> Any:  # noqa: ARG001
    """Replace redis-py's parse_response: no callbacks, and bytes are not decoded."""
    block: int | None = options["block"]
    if block is None:
        return connection.read_response(disable_decoding=True)
    patience: float | None = connection.socket_timeout
    timeout = None if block == 0 or patience is None else patience + block / 1000
    return connection.read_response(disable_decoding=True, timeout=timeout)


class _Raw(redis.Redis):
    """Sends one command at a time."""

    parse_response = _reply


class _Pipeline(redis.client.Pipeline):
    """Sends several commands at once, without redis-py's handling of commands that are never sent this way."""

    parse_response = _reply

    def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> list[Any]:  # noqa: ARG002
        connection.send_packed_command([packed(connection, *command) for command in commands])
        replies: list[Any] = []
        for args, options in commands:
            try:
                replies.append(self.parse_response(connection, args[0], **options))
            except redis.ResponseError as error:
                replies.append(error)
        return replies


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

    Commands raise redis.ConnectionError and redis.TimeoutError if the server does not answer. The server may have
    executed the command anyway. If the server refuses a command, redis.ResponseError or one of its subclasses
    NoGroupError, NoStageError, StaleEpochError and ConflictError is raised, with the server's text.
    """

    def __init__(self, url: str | Access = DEFAULT_URL, *, trace_context: bool = False, **options: Any) -> None:
        self.trace_context = trace_context
        single = options.pop("single_connection_client", False)
        pool = redis.ConnectionPool(**pool_options(url, options, redis))
        made = redis.Redis(connection_pool=pool, single_connection_client=single)
        made.auto_close_connection_pool = True
        self._use(made)

    def _use(self, client: redis.Redis) -> None:
        self.redis = client
        self._raw: Any = _Raw(connection_pool=client.connection_pool)

    @classmethod
    def over(cls, client: redis.Redis, *, trace_context: bool = False) -> Self:
        """Return a client over the connections of a redis.Redis, such as one that a Sentinel object returned.

        >>> sentinel = Sentinel([("10.0.0.1", 26379), ("10.0.0.2", 26379)]) >>> client =
        Client.over(sentinel.master_for("tide", retry=Retry(NoBackoff(), 0)))

        The ``retry`` in the example keeps commands from being repeated after a lost reply.
        """
        self = cls.__new__(cls)
        self.trace_context = trace_context
        self._use(client)
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
        except redis.ResponseError as error:
            raise translated(error) from None
        return read_one(call, reply)

    def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection, without waiting in between, and return their results.

        >>> entry_id, replicas = client.together(calls.tappend("weather", {"city": "Oslo"}), calls.wait(1, 1000))

        If the server refuses a call, it executes the others anyway. Then the first error is raised. Without
        ``raise_on_error``, each error takes the place of its result.
        """
        pipeline: Any = _Pipeline(self.redis.connection_pool, {}, False, None)
        for call in filter(is_sent, calls):
            pipeline.execute_command(*call.args, block=call.block, packed=call.packed)
        return read_all(calls, pipeline.execute(raise_on_error=False), raise_on_error)

    def close(self) -> None:
        """Close all connections."""
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def pages(self, key: Name, start: IdLike = "-", end: IdLike = "+", size: int = PAGE) -> Iterator[list[Entry]]:
        """Read a range of any size in lists of up to ``size`` entries, oldest first. Bounds are as for ``trange``."""
        while page := self.trange(key, start, end, size):
            yield page
            start = f"({page[-1].id}"
