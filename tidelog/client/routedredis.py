"""``RoutedRedis``: the redis.Redis of a ``Client``. In a cluster of several groups, it routes each command by its keys.

Until then it is an ordinary redis.Redis. In a cluster, these differ from it:

    pipeline()      without MULTI, it is divided by member; with MULTI or WATCH, all keys must be on one member
    scan_iter()     asks all leaders; scan() is refused, since a cursor belongs to one member
    pubsub()        subscribes at the member that has the channel's slot, to which publish() sends; no patterns
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE, Pipeline, PubSub

from tidelog.client.clusterlink import MOVES, SPANNING, ClusterLink, as_call, is_move
from tidelog.transport.clusterpools import ClusterPools
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.rawcalls import LOST
from tidelog.transport.routing import ATTEMPTS, BACKOFF, Routes, is_redirection
from tidelog.transport.slots import MemberAddress

SUBSCRIBING: Final = ("SUBSCRIBE", "SSUBSCRIBE")
PATTERNS: Final = (
    "a pattern can match channels of several groups of the cluster: subscribe to the channels by their names, or create"
    " a redis.Redis for each leader"
)


class RoutedRedis(redis.Redis):
    """See the module."""

    link: ClusterLink

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.link.routed is None and not (args[0] in SPANNING and self.link.detect()):
            try:
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except MOVES as error:
                if not is_move(error) or not self.link.found():
                    raise
        pools = self.link.routed
        assert pools is not None  # noqa: S101 - found
        (reply,) = pools.send([as_call(args)], read=reader(options))
        return called_back(self.response_callbacks, args[0], reply, options)

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        pools = self.link.detect()
        if pools is None:
            yield from super().scan_iter(*args, **options)
            return
        for member in pools.routes.leaders:
            with redis.Redis(connection_pool=pools.pool(member)) as single:
                yield from single.scan_iter(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> RoutedPipeline:
        made = RoutedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.link, made.is_transaction = self.link, transaction
        return made

    def pubsub(self, **options: Any) -> PubSub:
        if self.link.detect() is None:
            return super().pubsub(**options)  # type: ignore[no-untyped-call,no-any-return]
        made = RoutedPubSub(self.connection_pool, event_dispatcher=self._event_dispatcher, **options)
        made.link = self.link
        return made


class RoutedPipeline(Pipeline):
    """The pipeline of a RoutedRedis."""

    link: ClusterLink
    is_transaction: bool

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        if self.connection is None and (pools := self.link.detect(once=True)) is not None:  # WATCH
            self.connection_pool = pools.pool(owner_of(pools.routes, [(args, options)]))
        return super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        whole: bool = self.is_transaction or self.explicit_transaction
        if self.connection is not None or not commands:
            return super().execute(raise_on_error)
        if self.link.detect(once=True) is None:
            try:
                return super().execute(raise_on_error)
            except MOVES as error:
                if not is_move(error) or not self.link.found() or not whole:
                    raise
        pools = self.link.routed
        assert pools is not None  # noqa: S101 - found
        if whole:
            return self._execute_whole(pools, commands, raise_on_error)
        try:
            return _divided(pools, self, commands, raise_on_error)
        finally:
            self.reset()

    def _execute_whole(self, pools: ClusterPools, commands: list[Any], raise_on_error: bool) -> list[Any]:
        """Execute a transaction on the member of its keys. A refused transaction is repeated as a whole."""
        for attempt in range(ATTEMPTS + 1):
            if pools.routes.stale:
                pools.reload()
            self.connection_pool = pools.pool(owner_of(pools.routes, commands))
            self.command_stack = list(commands)
            try:
                return super().execute(raise_on_error)
            except redis.ResponseError as error:
                if not is_redirection(error) or attempt == ATTEMPTS:
                    raise
                pools.routes.stale = True
                time.sleep(BACKOFF.delay(attempt + 1))
            except LOST:
                pools.routes.stale = True
                raise
        raise AssertionError("the last attempt returns or raises")


class RoutedPubSub(PubSub):
    """The subscriber of a RoutedRedis."""

    link: ClusterLink

    def execute_command(self, *args: Any) -> Any:
        if args[0] == "PSUBSCRIBE":
            raise CrossGroupError(PATTERNS)
        if args[0] in SUBSCRIBING and self.link.routed is not None:
            pools = self.link.routed
            if pools.routes.stale:
                pools.reload()
            self.connection_pool = channels_pool(self, pools.pool(channels_owner(pools.routes, args)))
        return super().execute_command(*args)  # type: ignore[no-untyped-call]


SEPARATE: Final = "the channels are on different groups of the cluster: use one pubsub() for the channels of each group"


def reader(options: dict[str, Any]) -> Any:
    """Return a function that reads a reply as redis-py does with these options."""
    raw = options.pop(NEVER_DECODE, None) is not None

    def read(_: Any, connection: Any, command_name: Any, **options: Any) -> Any:  # noqa: ARG001
        return connection.read_response(disable_decoding=raw)

    return read


def called_back(callbacks: Any, name: Any, reply: Any, options: dict[str, Any]) -> Any:
    """Return the result that redis-py makes of a reply. Raises errors."""
    if isinstance(reply, redis.ResponseError) and EMPTY_RESPONSE in options:
        return options[EMPTY_RESPONSE]
    if isinstance(reply, Exception):
        raise reply
    given = {option: value for option, value in options.items() if option not in ("keys", EMPTY_RESPONSE)}
    return callbacks[name](reply, **given) if name in callbacks else reply


def owner_of(routes: Routes, commands: Sequence[Any]) -> MemberAddress:
    """Return the member of all keys of queued commands. Raises CrossGroupError."""
    return routes.owner_of_calls([as_call(args) for args, _ in commands]) or routes.leaders[0]


def channels_owner(routes: Routes, args: Sequence[Any]) -> MemberAddress:
    """Return the member for the channels of a SUBSCRIBE. Raises CrossGroupError."""
    owners = {routes.owner(channel): channel for channel in args[1:]}
    if len(owners) > 1:
        raise CrossGroupError(SEPARATE)
    return next(iter(owners), routes.leaders[0])


def channels_pool(pubsub: Any, pool: Any) -> Any:
    """Return the pool for the channels of a SUBSCRIBE. Raises CrossGroupError if the subscriber uses another member."""
    if pubsub.connection is not None and pubsub.connection_pool is not pool:
        raise CrossGroupError(SEPARATE)
    return pool


def results(pipeline: Any, commands: Sequence[Any], replies: Sequence[Any], raise_on_error: bool) -> list[Any]:
    """Return the results of a divided pipeline, as redis-py does."""
    made: list[Any] = []
    for (args, options), reply in zip(commands, replies, strict=True):
        try:
            made.append(called_back(pipeline.response_callbacks, args[0], reply, options))
        except redis.ResponseError as error:
            made.append(error)
    if raise_on_error:
        pipeline.raise_first_error(commands, made)
    return made


def _divided(pools: ClusterPools, pipeline: Any, commands: Sequence[Any], raise_on_error: bool) -> list[Any]:
    calls = [as_call(args) for args, _ in commands]
    return results(pipeline, commands, pools.send(calls, read=reader({})), raise_on_error)
