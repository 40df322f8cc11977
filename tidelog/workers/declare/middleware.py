"""Middleware: layers around a processor's function.

A middleware is called with events and with ``call_next``, which calls the next layer and, last, the function::

    async def audit(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        log.info("%d events", len(events))
        await call_next(events)

Rule 1: a middleware sees all exceptions of the inner layers, including decoding errors. If it raises, the failure
        policy applies; if it suppresses the exception, the events are processed successfully.
Rule 2: it can pass on other events, or fewer. Events that it does not pass on count as processed.
Rule 3: it can pass an event on again, and the function is called again. With transactional=True this is allowed only
        after a failure; the records that the failed call has sent are discarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tidelog.client.entries import StreamId
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.signature import check_async

CallNext = Callable[[Sequence[Event[Any]]], Awaitable[None]]
_EXAMPLE = "async def audit(events: Sequence[Event], call_next: CallNext) -> None"


class Middleware(Protocol):
    """A layer around processors: an async function, or an object with an async ``__call__``."""

    async def __call__(self, events: Sequence[Event[Any]], call_next: CallNext, /) -> None: ...


def checked(title: str, middleware: Any) -> tuple[Middleware, ...]:
    """Return a list of middleware as a tuple, outermost first. Raises AppError for anything else."""
    if isinstance(middleware, str | bytes) or not isinstance(middleware, Sequence):
        raise AppError(f"{title}: middleware must be a list, outermost first: {middleware!r}")
    for layer in middleware:
        if isinstance(layer, type):
            raise AppError(f"{title}: middleware {layer.__name__} is a class: write {layer.__name__}(...)")
        check_async(f"{title}: middleware {getattr(layer, '__name__', layer)!s}", layer, _EXAMPLE)
    return tuple(middleware)


def onion(layers: Sequence[Middleware], core: CallNext) -> CallNext:
    """Compose the layers and the core into one function."""
    for layer in reversed(layers):
        core = _around(layer, core)
    return core


def _around(layer: Middleware, inner: CallNext) -> CallNext:
    async def call(events: Sequence[Event[Any]]) -> None:
        await layer(events, inner)

    return call


def once(title: str, layers: Sequence[Middleware], core: CallNext) -> CallNext:
    """Compose like ``onion``, for one attempt of a transactional processor. Raises AppError if Rule 3 is violated."""
    inside: set[StreamId] = set()  # events that the core is processing

    async def counted(events: Sequence[Event[Any]]) -> None:
        ids = {event.id for event in events}
        inside.update(ids)
        try:
            await core(events)
        finally:
            inside.difference_update(ids)

    composed: CallNext = counted
    for layer in reversed(layers):
        composed = _around_once(title, layer, composed, inside)
    return composed


def _around_once(title: str, layer: Middleware, inner: CallNext, inside: set[StreamId]) -> CallNext:
    """Before an event is passed on again, discard the records that its failed call has sent.

    Records that the layer itself has sent, before or after that call, are kept.
    """

    async def call(events: Sequence[Event[Any]]) -> None:
        passed: set[StreamId] = set()  # events in the inner layers, or that left them without a failure
        failed: dict[StreamId, tuple[int, int]] = {}  # by event: the index range of the records of the failed call

        async def call_next(events: Sequence[Event[Any]]) -> None:
            ids = {event.id for event in events}
            if len(ids) < len(events) or not passed.isdisjoint(ids):
                raise AppError(
                    f"{title}: middleware has passed on the same event twice; with transactional=True its records would"
                    " be sent twice. An event can be passed on again only after a failure"
                )
            for event in events:
                if event.id in failed:
                    event.actions.discard_sent(event, *failed.pop(event.id))
            before = [event.actions.sent_count(event) for event in events]
            passed.update(ids)
            try:
                await inner(events)
            except BaseException:
                for event, start in zip(events, before, strict=True):
                    if event.id not in inside:  # otherwise a task that an inner layer started is still processing it
                        passed.discard(event.id)
                        failed[event.id] = start, event.actions.sent_count(event)
                raise

        await layer(events, call_next)

    return call
