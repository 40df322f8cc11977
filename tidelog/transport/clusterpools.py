"""The connections of a client to a cluster of several groups: a pool for each member. They send what ``routing`` plans.

Rule 1: batches of one request are sent to all members before any reply is read, so the members work at the same time.
Rule 2: the map is read from the member that a redirection named, from the known leaders, and then from the addresses
        with which the client was created, until one of them answers.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError

from tidelog.transport.access import Access
from tidelog.transport.call import Call, plain
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import message_of
from tidelog.transport.pools import member_options
from tidelog.transport.rawcalls import LOST, packed, read_reply, read_reply_async
from tidelog.transport.routing import Delay, MemberBatch, Reload, Routes, Routing, Send, Step, routed
from tidelog.transport.slots import OWNERS, MemberAddress, other_groups

P = TypeVar("P", redis.ConnectionPool, redis.asyncio.ConnectionPool)
ASKING: Final = plain("ASKING")
_MAP: Final = (plain("CLUSTER", "SLOTS"), plain("COMMAND"))
_FORM: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)  # of unexpected replies
_RIGHTS: Final = "in a cluster of several groups, a client needs the permissions +cluster|slots +cluster|myid +command"
Answered = tuple[MemberAddress, Sequence[Any]]  # see ``routed``


class _Pools(Generic[P]):
    """The common part of both kinds."""

    def __init__(self, where: str | Access, options: dict[str, Any], module: Any, seeds: P) -> None:
        """Initialize. ``seeds``: the pool with which the client began."""
        self.routes = Routes()
        self._where, self._options, self._module = where, options, module
        self._seeds: P = seeds
        self._pools: dict[MemberAddress, P] = {}

    def pool(self, member: MemberAddress) -> P:
        """Return the pool of a member."""
        found = self._pools.get(member)
        if found is None:
            options = member_options(self._where, self._options, self._module, member.host, member.port)
            found = self._pools.setdefault(member, self._module.ConnectionPool(**options))
        return found

    def _sources(self, first: MemberAddress | None) -> Iterator[P]:
        """Yield the pools of members that may have the map."""
        known = dict.fromkeys(([first] if first is not None else []) + self.routes.leaders)
        for member in known:
            yield self.pool(member)
        yield self._seeds

    def _learn(self, replies: Sequence[Any], connection: Any) -> bool:
        """Take over the map from a member; returns whether it has one. Raises the member's error."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        slots, commands = replies[0], replies[1] if len(replies) > 1 else None
        if not slots:
            return False
        try:
            self.routes.learn(slots, commands, MemberAddress(connection.host, connection.port))
        except _FORM as error:
            raise redis.ConnectionError(f"CLUSTER SLOTS or COMMAND has an unexpected form: {error}") from error
        return True

    def _unused(self) -> list[P]:
        """Return the pools of members that do not lead any more, which are forgotten."""
        gone = self._pools.keys() - set(self.routes.leaders)
        return [self._pools.pop(member) for member in list(gone)]


def map_calls(routes: Routes) -> tuple[Call[Any], ...]:
    """Return the calls for the map, and for the commands if they are not known yet. See ``Routes.learn``."""
    return _MAP if routes.map is None else _MAP[:1]


def _words(connection: Any, batch: MemberBatch) -> list[bytes]:
    """Return the commands of a batch in RESP."""
    made: list[bytes] = []
    for call in batch.calls:
        if batch.asking:
            made.append(packed(connection, ASKING.args, {"packed": None}))
        made.append(packed(connection, call.args, {"packed": call.packed}))
    return made


class ClusterPools(_Pools[redis.ConnectionPool]):
    """The pools of ``Client``. Threads may share it."""

    def __init__(self, where: str | Access, options: dict[str, Any], seeds: redis.ConnectionPool) -> None:
        super().__init__(where, options, redis, seeds)
        self._reading = threading.Lock()  # held while the map is read

    def send(
        self, calls: Sequence[Call[Any]], answered: Answered | None = None, read: Callable[..., Any] = read_reply
    ) -> list[Any]:
        """Send calls and return their replies; an error takes the place of a reply.

        ``read`` reads a reply from a connection. Raises redis.ConnectionError if the map can't be read.
        """
        steps = routed(self.routes, calls, answered)
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step, read)
                except LOST as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            replies: list[Any] = end.value
            return replies

    def _do(self, step: Step, read: Callable[..., Any]) -> Any:
        if isinstance(step, Send):
            return self._sent(step, read)
        if isinstance(step, Delay):
            time.sleep(step.seconds)
        else:
            self.reload(step.first)
        return None

    def reload(self, first: MemberAddress | None = None) -> None:
        """Read the map. Raises redis.RedisError if no member answers, or if it refuses."""
        with self._reading:
            if not self.routes.stale:  # another thread has read it
                return
            failed: Exception = redis.ConnectionError("no member of the cluster has a map")
            for pool in self._sources(first):
                connection = None
                try:
                    connection = pool.get_connection()
                    batch = MemberBatch(MemberAddress("", 0), list(map_calls(self.routes)))
                    connection.send_packed_command(_words(connection, batch))
                    if self._learn(_read_all(connection, batch, read_reply), connection):
                        break
                except LOST as error:
                    failed = error
                finally:
                    if connection is not None:
                        pool.release(connection)
            else:
                raise failed
        for unused in self._unused():
            unused.disconnect(inuse_connections=False)

    def routing_needed(self) -> bool:
        """Return whether other groups have slots than that of the servers with which the client began.

        Reads the map. Raises what ``reload`` raises.
        """
        self.reload()
        if len(self.routes.leaders) > 1:
            return True
        connection = self._seeds.get_connection()
        try:
            batch = MemberBatch(MemberAddress("", 0), list(OWNERS))
            connection.send_packed_command(_words(connection, batch))
            return other_groups(*_read_all(connection, batch, read_reply))
        finally:
            self._seeds.release(connection)

    def _sent(self, step: Send, read: Callable[..., Any]) -> list[list[Any]]:
        """Send batches and return their replies."""
        open_: list[tuple[redis.ConnectionPool, Any]] = []
        answers: list[list[Any] | None] = []
        try:
            for batch in step.batches:
                pool = self.pool(batch.member)
                try:
                    connection = pool.get_connection()
                    open_.append((pool, connection))
                    connection.send_packed_command(_words(connection, batch))
                    answers.append(None)
                except LOST as error:
                    if len(open_) == len(answers):
                        open_.append((pool, None))
                    answers.append(self._lost(batch, error))
            if step.race and None in answers:
                _race(open_, step.batches, answers, read)
            for at, batch in enumerate(step.batches):
                if answers[at] is None:
                    try:
                        answers[at] = _read_all(open_[at][1], batch, read)
                    except LOST as error:
                        answers[at] = self._lost(batch, error)
            return [answer or [] for answer in answers]
        finally:
            for at, (pool, connection) in enumerate(open_):
                if connection is not None:
                    if at >= len(answers) or answers[at] is None:  # interrupted: its replies would be read later
                        connection.disconnect()
                    pool.release(connection)

    def _lost(self, batch: MemberBatch, error: Exception) -> list[Any]:
        self.routes.stale = True
        return [error] * len(batch.calls)

    def close(self) -> None:
        """Close all connections to members."""
        for pool in self._pools.values():
            pool.disconnect()


def _read_all(connection: Any, batch: MemberBatch, read: Callable[..., Any]) -> list[Any]:
    """Read the replies of a batch. An error reply takes its place; the connection is closed after a lost reply."""
    replies: list[Any] = []
    try:
        for call in batch.calls:
            if batch.asking:
                with suppress(redis.ResponseError):
                    read_reply(None, connection, "", block=None)
            try:
                replies.append(read(None, connection, call.args[0], block=call.block))
            except redis.ResponseError as error:
                replies.append(error)
    except BaseException:
        connection.disconnect()
        raise
    return replies


def _race(
    open_: Sequence[tuple[Any, Any]], batches: Sequence[MemberBatch], answers: list[list[Any] | None],
    read: Callable[..., Any],
) -> None:  # fmt: skip
    """Read the first reply that is not null, and close the connections of the others."""
    with selectors.DefaultSelector() as selector:
        for at, (_, connection) in enumerate(open_):
            if answers[at] is None:
                selector.register(connection._sock, selectors.EVENT_READ, at)
        block, patience = batches[0].calls[0].block, open_[0][1].socket_timeout if open_[0][1] is not None else None
        until = None if not block or patience is None else time.monotonic() + patience + block / 1000
        while selector.get_map() and not any(answer and answer[0] is not None for answer in answers):
            ready = selector.select(None if until is None else max(0.0, until - time.monotonic()))
            if not ready:
                raise redis.TimeoutError("Timeout reading from socket")
            for key, _ in ready:
                selector.unregister(key.fileobj)
                answers[key.data] = _read_all(open_[key.data][1], batches[key.data], read)
    for at, (_, connection) in enumerate(open_):
        if answers[at] is None:
            connection.disconnect()
            answers[at] = [None]


class AsyncClusterPools(_Pools[redis.asyncio.ConnectionPool]):
    """The pools of ``AsyncClient``, for the tasks of one event loop."""

    def __init__(self, where: str | Access, options: dict[str, Any], seeds: redis.asyncio.ConnectionPool) -> None:
        super().__init__(where, options, redis.asyncio, seeds)
        self._reading = asyncio.Lock()

    async def send(
        self, calls: Sequence[Call[Any]], answered: Answered | None = None,
        read: Callable[..., Awaitable[Any]] = read_reply_async,
    ) -> list[Any]:  # fmt: skip
        """See ``ClusterPools.send``."""
        steps: Routing = routed(self.routes, calls, answered)
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._do(step, read)
                except LOST as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            replies: list[Any] = end.value
            return replies

    async def _do(self, step: Step, read: Callable[..., Awaitable[Any]]) -> Any:
        if isinstance(step, Delay):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Reload):
            await self.reload(step.first)
        elif len(step.batches) == 1:
            return [await self._ask(step.batches[0], read)]
        elif step.race:
            return await self._race(step.batches, read)
        else:
            return await asyncio.gather(*(self._ask(batch, read) for batch in step.batches))
        return None

    async def reload(self, first: MemberAddress | None = None) -> None:
        """See ``ClusterPools.reload``."""
        async with self._reading:
            if not self.routes.stale:
                return
            failed: Exception = redis.ConnectionError("no member of the cluster has a map")
            for pool in self._sources(first):
                try:
                    batch = MemberBatch(MemberAddress("", 0), list(map_calls(self.routes)))
                    replies, connection = await _exchange(pool, batch, read_reply_async)
                    if self._learn(replies, connection):
                        break
                except LOST as error:
                    failed = error
            else:
                raise failed
        for unused in self._unused():
            await unused.disconnect(inuse_connections=False)

    async def routing_needed(self) -> bool:
        """See ``ClusterPools.routing_needed``."""
        await self.reload()
        if len(self.routes.leaders) > 1:
            return True
        replies, _ = await _exchange(self._seeds, MemberBatch(MemberAddress("", 0), list(OWNERS)), read_reply_async)
        return other_groups(*replies)

    async def _ask(self, batch: MemberBatch, read: Callable[..., Awaitable[Any]]) -> list[Any]:
        try:
            replies, _ = await _exchange(self.pool(batch.member), batch, read)
        except LOST as error:
            self.routes.stale = True
            return [error] * len(batch.calls)
        return replies

    async def _race(self, batches: Sequence[MemberBatch], read: Callable[..., Awaitable[Any]]) -> list[list[Any]]:
        """Return the first reply that is not null; the connections of the others are closed."""
        tasks = [asyncio.create_task(self._ask(batch, read)) for batch in batches]
        try:
            left: set[asyncio.Task[list[Any]]] = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result()[0] is not None for task in done):
                    break
        finally:
            for task in tasks:
                await cancel_and_wait(task)
        return [[None] if task.cancelled() else task.result() for task in tasks]

    async def close(self) -> None:
        """Close all connections to members."""
        for pool in self._pools.values():
            await pool.disconnect()


async def _exchange(
    pool: redis.asyncio.ConnectionPool, batch: MemberBatch, read: Callable[..., Awaitable[Any]]
) -> tuple[list[Any], Any]:
    """Send a batch and return its replies, and the connection, which is released."""
    connection: Any = await pool.get_connection()
    replies: list[Any] = []
    try:
        await connection.send_packed_command(b"".join(_words(connection, batch)))
        for call in batch.calls:
            if batch.asking:
                with suppress(redis.ResponseError):
                    await read_reply_async(None, connection, "", block=None)
            try:
                replies.append(await read(None, connection, call.args[0], block=call.block))
            except redis.ResponseError as error:
                replies.append(error)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)
    return replies, connection


def answered(replies: list[Any]) -> list[Any]:
    """Return the replies. Raises the first error of a connection among them."""
    for reply in replies:
        if isinstance(reply, LOST):
            raise reply
    return replies


def denied(error: redis.ResponseError) -> redis.ResponseError:
    """Return the error to raise if the map can't be read."""
    if not message_of(error).startswith("NOPERM "):
        return error
    return NoPermissionError(f"{error}: {_RIGHTS}", status_code="NOPERM")
