"""Middleware and the timeout around the events of an ``app.processor`` function.

Such a function pulls its events, so middleware can't wrap a call for each of them. Instead, the layers run in a task
for each pull. They are called with the events. Their ``call_next`` passes the events to the function and returns when
the function requests the next ones, or raises the error of the function. Thus middleware works as for other processors,
with two differences: the function does not see context variables that middleware sets, and ``call_next`` can be called
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event, EventFeed, Events
from tidelog.workers.declare.middleware import Middleware, onion
from tidelog.workers.declare.timeouts import CallTimeouts, TimedCall
from tidelog.workers.declare.user_errors import as_failure


class TimedFeed:
    """A feed whose timeout is running while the function has events, and stopped while the function waits."""

    def __init__(self, inner: EventFeed, deadlines: CallTimeouts) -> None:
        self._inner = inner
        self._deadlines = deadlines
        self._timed: TimedCall | None = deadlines.begin()  # also covers the code before the first event

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``EventFeed.next``."""
        self.end(None)
        events = await self._inner.next(count, within)
        self._timed = self._deadlines.begin()
        return events

    def end(self, error: BaseException | None) -> bool:
        """Stop the timeout. Returns True if ``error`` is the cancellation that the timeout caused."""
        timed, self._timed = self._timed, None
        return timed is not None and self._deadlines.end(timed, error)

    def finished(self, events: list[Event[Any]]) -> None:
        """See ``EventFeed.finished``."""
        self._inner.finished(events)


class MiddlewareFeed:
    """A feed that passes events through middleware, for one call of an ``app.processor`` function."""

    def __init__(self, events: Events[Any], layers: Sequence[Middleware]) -> None:
        self._events = events
        self._inner = events.feed
        self._layers = layers
        self._pull: _Pull | None = None  # the events that the function has

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``EventFeed.next``. Raises the errors of middleware."""
        await self.close()
        if not self._layers:
            return await self._inner.next(count, within)
        while events := await self._inner.next(count, within):
            self._events.in_flight = events  # from here on, a failure concerns these events
            self._pull = _Pull(events, self._layers)
            passed = await self._pull.passed()
            if passed:
                return passed
            await self.close()  # middleware has dropped all of them, which is a success
        return []

    def finished(self, events: list[Event[Any]]) -> None:
        """See ``EventFeed.finished``. With middleware, events are finished only when the middleware has returned."""
        if self._pull is None:
            self._inner.finished(events)

    async def close(self) -> None:
        """Mark the events of the function as processed, unless middleware raises an error."""
        if self._pull is None:
            self._events.settle()
            return
        self._events.in_flight = self._pull.events
        await self._pull.succeed()
        self._finish(self._pull)

    async def fail(self, error: Exception) -> None:
        """Pass an error of the function to the middleware. Raises the error that comes out of it."""
        if self._pull is None:
            raise error
        self._events.in_flight = self._pull.events
        await self._pull.fail(error)
        self._finish(self._pull)

    async def abandon(self) -> None:
        """Cancel the task of the middleware."""
        if self._pull is not None:
            await self._pull.abandon()

    def _finish(self, pull: _Pull) -> None:
        self._pull = None
        self._events.in_flight = []
        self._inner.finished(pull.events)


class _Pull:
    """Events that pass through the middleware to the function and back."""

    def __init__(self, events: list[Event[Any]], layers: Sequence[Middleware]) -> None:
        loop = asyncio.get_running_loop()
        self.events = events
        self._passed: asyncio.Future[list[Event[Any]]] = loop.create_future()  # the events that the layers pass on
        self._outcome: asyncio.Future[None] = loop.create_future()  # the outcome in the function
        self._task = loop.create_task(self._run(layers))

    async def passed(self) -> list[Event[Any]]:
        """Return the events that the layers pass on, which may be none. Raises their errors."""
        await asyncio.wait((self._passed, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._passed.done():
            return self._passed.result()
        await self._task
        return []

    async def succeed(self) -> None:
        """Report success to the layers. Raises their errors."""
        if not self._outcome.done():
            self._outcome.set_result(None)
        await self._task

    async def fail(self, error: Exception) -> None:
        """Report an error of the function to the layers. Raises the error that comes out of them."""
        if self._task.done():  # the error came from the layers and has passed through the function
            raise error
        if not self._outcome.done():
            self._outcome.set_exception(error)
        await self._task

    async def abandon(self) -> None:
        self._task.cancel()
        self._outcome.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # mark it as retrieved

    async def _run(self, layers: Sequence[Middleware]) -> None:
        try:
            await onion(layers, self._core)(self.events)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # asyncio treats these specially in a task
            raise as_failure(error, self._task) from error

    async def _core(self, events: Sequence[Event[Any]]) -> None:
        if self._passed.done():
            raise AppError("in app.processor, middleware can call call_next only once for the same events")
        self._passed.set_result(list(events))
        if events:
            await self._outcome
