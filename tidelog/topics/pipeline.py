"""``CallPipeline``: sends the calls of many tasks on one connection at a time, in order.

Calls that arrive while a reply is outstanding are sent together as one pipeline. The order of calls is therefore kept,
and many concurrent tasks cost a few round trips, not one each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import hiredis
import redis

from tidelog.client.asyncclient import AsyncClient
from tidelog.client.steps import LOST, Steps
from tidelog.transport.call import Call

T = TypeVar("T")
AT_ONCE: Final = 1000  # calls in one pipeline, unless one caller has more


class CallPipeline:
    """The pipeline for the tasks of one event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._waiting: deque[tuple[Sequence[Call[Any]], asyncio.Future[list[Any]]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()  # held while calls are being queued whose order matters

    async def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls and return their results; an error reply takes the place of a result.

        Raises redis.ConnectionError or redis.TimeoutError if the server did not answer. If the task is cancelled before
        the calls were sent, they are not sent. Otherwise the server executes them.
        """
        return await self._submit(calls)

    def _submit(self, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        """Queue calls. They are packed here, so that an invalid argument is an error of its caller only."""
        ready = [call if call.packed is not None else _packed(call) for call in calls]
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((ready, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())
        return future

    async def several_groups(self) -> bool:
        """Return whether the servers are a cluster of several groups."""
        return await self._client.several_groups()

    async def run(self, steps: Steps[T]) -> T:
        """Drive an operation and return its result. Errors of the connection are thrown into it."""
        return await self.start(steps)

    def start(self, steps: Steps[T]) -> Awaitable[T]:
        """Drive an operation like ``run``, but queue its first calls before this method returns."""
        try:
            return self._drive(steps, self._submit(next(steps)))
        except StopIteration as end:
            return _done(end.value)

    async def _drive(self, steps: Steps[T], under_way: asyncio.Future[list[Any]]) -> T:
        try:
            while True:
                try:
                    replies = await under_way
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    calls = steps.throw(error)
                else:
                    calls = steps.send(replies)
                under_way = self._submit(calls)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send_all(self) -> None:
        under_way: list[tuple[Sequence[Call[Any]], asyncio.Future[list[Any]]]] = []
        try:
            while self._waiting:
                under_way = self._next()
                if under_way:
                    await self._send_one(under_way)
        finally:
            self._sender = None
            for _, future in (*under_way, *self._waiting):
                future.cancel()  # has no effect on those that have their results
            self._waiting.clear()

    def _next(self) -> list[tuple[Sequence[Call[Any]], asyncio.Future[list[Any]]]]:
        taken: list[tuple[Sequence[Call[Any]], asyncio.Future[list[Any]]]] = []
        total = 0
        while self._waiting and (not taken or total + len(self._waiting[0][0]) <= AT_ONCE):
            calls, future = self._waiting.popleft()
            if not future.cancelled():
                taken.append((calls, future))
                total += len(calls)
        return taken

    async def _send_one(self, batch: list[tuple[Sequence[Call[Any]], asyncio.Future[list[Any]]]]) -> None:
        try:
            replies = await self._client.outcomes([call for calls, _ in batch for call in calls])
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        at = 0
        for calls, future in batch:
            if not future.done():
                _settle(future, replies[at : at + len(calls)])
            at += len(calls)


def _packed(call: Call[T]) -> Call[T]:
    return Call(call.args, call.read, call.block, hiredis.pack_command(call.args)) if call.args else call  # type: ignore[arg-type]


def _settle(future: asyncio.Future[list[Any]], replies: list[Any]) -> None:
    """Pass on replies; a lost connection to one of several members is raised."""
    for reply in replies:
        if isinstance(reply, LOST):
            future.set_exception(reply)
            return
    future.set_result(replies)


async def _done(result: T) -> T:
    return result
