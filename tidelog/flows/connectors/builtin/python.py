"""Sources and sinks from Python functions and classes."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

from tidelog.client import tracecontext
from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Connector, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.operating.errortexts import summary_of, text_of
from tidelog.options.limits import AtLeastOne


class PythonConnectorOptions(ConnectorOptions):
    """Options of functions and classes."""

    concurrency: AtLeastOne = 1  # Sink: maximum number of concurrent calls. Above 1, the order of events is lost.


class GeneratorSource(Source):
    """A source from an async generator, which yields values or Events. The source ends when the generator returns.

    After a ConnectionError or OSError, the generator is started again. Any other exception fails the flow.
    """

    def __init__(self, function: Callable[[], AsyncIterator[Any]]) -> None:
        super().__init__()
        self._function = function
        self._iterator: AsyncIterator[Any] | None = None
        self._next: asyncio.Future[Any] | None = None  # outlives an interruption
        self._number = 0
        #: One for all calls: a context variable, such as a span, that is set before a yield can be reset after it.
        self._context = copy_context()

    async def connect(self) -> None:
        if self._iterator is None:
            self._iterator = aiter(self._function())

    async def close(self) -> None:
        task, self._next = self._next, None
        await cancel(task)
        iterator, self._iterator = self._iterator, None
        if isinstance(iterator, AsyncGenerator):
            await asyncio.create_task(_closed(iterator), context=self._context)

    async def pull(self, limit: int) -> list[Event] | None:
        assert self._iterator is not None  # noqa: S101 - it is connected
        found: list[Event] = []
        while len(found) < limit:
            if self._next is None:
                self._next = asyncio.create_task(_with_context(self._iterator), context=self._context)
                await asyncio.sleep(0)  # a generator that does not wait is done after this
            if not self._next.done():
                if found:
                    break
                await self.wait(asyncio.wait((self._next,)))
                if not self._next.done():
                    break
            if found and (self._next.cancelled() or self._next.exception()):
                return found  # the next pull raises it
            task, self._next = self._next, None
            try:
                value, context = task.result()
            except StopAsyncIteration:
                self._next = task
                return found or None
            event = value if isinstance(value, Event) else Event(value, None, self._number)
            if context and tracecontext.PARENT not in event.meta:
                event.meta = event.meta | context
            found.append(event)
            self._number += 1
        return found


async def _closed(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()


async def _with_context(values: AsyncIterator[Any]) -> tuple[Any, dict[str, str]]:
    """Return the next value, and the trace context of the span that is current where it is yielded."""
    value = await anext(values)
    return value, dict(zip(*tracecontext.current(), strict=True))


class FunctionSink(Sink):
    """A sink from an async function of a value or an event."""

    def __init__(self, function: Callable[[Any], Any], concurrency: int = 1) -> None:
        self._function = function
        self._calls = concurrency
        self._takes_event = _takes_event(function)
        self._left: deque[tuple[int, Event]] = deque()  # (index, event) of the current write that have not started

    async def write(self, events: list[Event]) -> list[tuple[int, str]]:
        outcomes = [(OK, "")] * len(events)
        left = self._left = deque(enumerate(events))

        async def caller() -> None:
            while left:
                at, event = left.popleft()
                outcomes[at] = await self._call(event)

        if self._calls == 1 or len(events) == 1:
            await caller()
            return outcomes
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._calls, len(events))):
                group.create_task(caller())
        return outcomes

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        waiting = list(self._left)
        self._left.clear()
        self._left.extend(each for each in waiting if not wanted(each[1]))
        left = {at for at, _ in self._left}
        return [event for at, event in waiting if at not in left]

    async def _call(self, event: Event) -> tuple[int, str]:
        try:
            await self._function(event if self._takes_event else event.value)
        except RejectError as error:
            return REJECT, text_of(error)
        except Exception as error:  # noqa: BLE001 - an error of user code: the event is retried
            return RETRY, summary_of(error)
        return OK, ""


def _takes_event(function: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and (first.annotation is Event or first.annotation == "Event" or first.name == "event")


def python_connector(what: Any, concurrency: int = 1) -> tuple[Callable[[], Connector], bool, bool] | None:
    """Return (a factory, whether it is a source, whether it is a sink); None: ``what`` is not a connector."""
    if isinstance(what, type) and issubclass(what, (Source, Sink)):
        return what, issubclass(what, Source), issubclass(what, Sink)
    if inspect.isasyncgenfunction(what):
        return (lambda: GeneratorSource(what)), True, False
    if inspect.iscoroutinefunction(what) or inspect.iscoroutinefunction(getattr(what, "__call__", None)):  # noqa: B004
        return (lambda: FunctionSink(what, concurrency)), False, True
    return None
