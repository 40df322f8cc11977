"""What stands between the runtime's ``Feed`` and a processor of Runnel's form: middleware and the timeout.

Such a processor pulls its events, so middleware can't be around a call for each of them. Instead its layers run in a
task for each pull: they are called with the events, their ``call_next`` hands the events to the processor, and returns
or raises when the processor asks for the next ones or fails. So middleware sees the same as elsewhere, with two
differences: what it sets in context variables is not seen by the processor, and ``call_next`` can be called once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event, Events, Feed
from tidelog.workers.declare.middleware import Middleware, onion
from tidelog.workers.declare.timeouts import Call, Deadlines
from tidelog.workers.declare.user_errors import failure


class Timed:
    """A feed that lets a timeout run while the processor has events, and stops it while the processor waits."""

    def __init__(self, inner: Feed, deadlines: Deadlines) -> None:
        self._inner = inner
        self._deadlines = deadlines
        self._timed: Call | None = deadlines.begin()  # what comes before the first event, too

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``Feed.next``."""
        self.end(None)
        events = await self._inner.next(count, within)
        self._timed = self._deadlines.begin()
        return events

    def end(self, error: BaseException | None) -> bool:
        """The processor has come so far, with this error. True if it is the cancellation because of the timeout."""
        timed, self._timed = self._timed, None
        return timed is not None and self._deadlines.end(timed, error)

    def finished(self, events: list[Event[Any]]) -> None:
        """See ``Feed.finished``."""
        self._inner.finished(events)


class Layered:
    """A feed with middleware around what it hands out, for one call of a processor."""

    def __init__(self, events: Events[Any], layers: Sequence[Middleware]) -> None:
        self._events = events
        self._inner = events.feed
        self._layers = layers
        self._pull: _Pull | None = None  # what the processor has

    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``Feed.next``. Raises what middleware raises."""
        await self.close()
        if not self._layers:
            return await self._inner.next(count, within)
        while given := await self._inner.next(count, within):
            self._events.in_hand = given  # from here on a failure is about these
            self._pull = _Pull(given, self._layers)
            passed = await self._pull.passed()
            if passed:
                return passed
            await self.close()  # they were held back, which is a success
        return []

    def finished(self, events: list[Event[Any]]) -> None:
        """See ``Feed.finished``. With middleware around them they are, once it has come to its end."""
        if self._pull is None:
            self._inner.finished(events)

    async def close(self) -> None:
        """What the processor has is done, if the middleware agrees. Raises what middleware raises."""
        if self._pull is None:
            self._events.settle()
            return
        self._events.in_hand = self._pull.given
        await self._pull.succeed()
        self._finish(self._pull)

    async def fail(self, error: Exception) -> None:
        """The processor failed with this. Raises what middleware lets out; without middleware the error itself."""
        if self._pull is None:
            raise error
        self._events.in_hand = self._pull.given
        await self._pull.fail(error)
        self._finish(self._pull)

    async def abandon(self) -> None:
        """End the task of the middleware, whatever it does."""
        if self._pull is not None:
            await self._pull.abandon()

    def _finish(self, pull: _Pull) -> None:
        self._pull = None
        self._events.in_hand = []
        self._inner.finished(pull.given)


class _Pull:
    """Events on their way through the middleware to the processor and back."""

    def __init__(self, given: list[Event[Any]], layers: Sequence[Middleware]) -> None:
        loop = asyncio.get_running_loop()
        self.given = given
        self._passed: asyncio.Future[list[Event[Any]]] = loop.create_future()  # what the layers let through
        self._outcome: asyncio.Future[None] = loop.create_future()  # what became of it in the processor
        self._task = loop.create_task(self._run(layers))

    async def passed(self) -> list[Event[Any]]:
        """What came through the layers: empty if they held everything back. Raises what they raise."""
        await asyncio.wait((self._passed, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._passed.done():
            return self._passed.result()
        await self._task
        return []

    async def succeed(self) -> None:
        """The processor is through. Raises what the layers raise then."""
        if not self._outcome.done():
            self._outcome.set_result(None)
        await self._task

    async def fail(self, error: Exception) -> None:
        """The processor failed. Raises what the layers let out."""
        if self._task.done():  # the error is theirs, and has passed through the processor
            raise error
        if not self._outcome.done():
            self._outcome.set_exception(error)
        await self._task

    async def abandon(self) -> None:
        self._task.cancel()
        self._outcome.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # it was raised where somebody waited for it, or nobody wants it

    async def _run(self, layers: Sequence[Middleware]) -> None:
        try:
            await onion(layers, self._core)(self.given)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # which mean something else outside of the task
            raise failure(error, self._task) from error

    async def _core(self, events: Sequence[Event[Any]]) -> None:
        if self._passed.done():
            raise AppError("in app.processor, middleware can call call_next once for the same events")
        self._passed.set_result(list(events))
        if events:
            await self._outcome
