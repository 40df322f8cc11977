"""Middleware: what stands around a processor's function, layer by layer.

A middleware is called with events and with ``call_next``, which calls the next layer, and in the end the function::

    async def audit(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        log.info("%d events", len(events))
        await call_next(events)

Rule 1: it sees every exception that comes out of the inner layers, also one from decoding. What it lets out goes to the
        failure policy; what it keeps back is a success.
Rule 2: it may pass on other events, or fewer. What it does not pass on counts as done.
Rule 3: it may pass an event on again, and the function is called again. With transactional=True only after a failure:
        what the failed call has sent is thrown away then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tidelog.client.entries import StreamId
from tidelog.workers.errors import AppError
from tidelog.workers.events import Event
from tidelog.workers.signature import check_async

CallNext = Callable[[Sequence[Event[Any]]], Awaitable[None]]
_EXAMPLE = "async def audit(events: Sequence[Event], call_next: CallNext) -> None"


class Middleware(Protocol):
    """A layer around processors: an async function, or an object with such a ``__call__``."""

    async def __call__(self, events: Sequence[Event[Any]], call_next: CallNext, /) -> None: ...


def checked(title: str, middleware: Any) -> tuple[Middleware, ...]:
    """A list of middleware as a tuple, outermost first. AppError for anything else."""
    if isinstance(middleware, str | bytes) or not isinstance(middleware, Sequence):
        raise AppError(f"{title}: middleware is a list, outermost first: {middleware!r}")
    for layer in middleware:
        if isinstance(layer, type):
            raise AppError(f"{title}: middleware {layer.__name__} is a class: write {layer.__name__}(...)")
        check_async(f"{title}: middleware {getattr(layer, '__name__', layer)!s}", layer, _EXAMPLE)
    return tuple(middleware)


def onion(layers: Sequence[Middleware], core: CallNext) -> CallNext:
    """The layers around the core, as one function."""
    for layer in reversed(layers):
        core = _around(layer, core)
    return core


def _around(layer: Middleware, inner: CallNext) -> CallNext:
    async def call(events: Sequence[Event[Any]]) -> None:
        await layer(events, inner)

    return call


def once(title: str, core: CallNext) -> CallNext:
    """The core for one attempt of a transactional processor, as Rule 3 says. AppError from it otherwise."""
    passed: set[StreamId] = set()  # what is in the core, or was and has not failed
    before: dict[StreamId, int] = {}  # outputs that an event had when it was first passed on

    async def call(events: Sequence[Event[Any]]) -> None:
        ids = {event.id for event in events}
        if len(ids) < len(events) or not passed.isdisjoint(ids):
            raise AppError(
                f"{title}: middleware has passed the same event on twice, and with transactional=True what it sends"
                " would leave twice. Only after a failure may it be passed on again"
            )
        for event in events:
            if event.id in before:
                event.sink.keep(event, before[event.id])
            else:
                before[event.id] = event.sink.kept(event)
        passed.update(ids)
        try:
            await core(events)
        except BaseException:
            passed.difference_update(ids)
            raise

    return call
