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
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.signature import check_async

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


def once(title: str, layers: Sequence[Middleware], core: CallNext) -> CallNext:
    """As ``onion``, for one attempt of a transactional processor, as Rule 3 says. AppError from it otherwise."""
    inside: set[StreamId] = set()  # events that are in the core now

    async def counted(events: Sequence[Event[Any]]) -> None:
        ids = {event.id for event in events}
        inside.update(ids)
        try:
            await core(events)
        finally:
            inside.difference_update(ids)

    made: CallNext = counted
    for layer in reversed(layers):
        made = _around_once(title, layer, made, inside)
    return made


def _around_once(title: str, layer: Middleware, inner: CallNext, inside: set[StreamId]) -> CallNext:
    """Before an event is passed on again, what its failed call has sent is thrown away, and nothing else: what the
    layer itself has sent, before or after that call, stays.
    """

    async def call(events: Sequence[Event[Any]]) -> None:
        passed: set[StreamId] = set()  # what is in the inner layers, or was and has not failed
        failed: dict[StreamId, tuple[int, int]] = {}  # which of the event's outputs the failed call has sent

        async def call_next(events: Sequence[Event[Any]]) -> None:
            ids = {event.id for event in events}
            if len(ids) < len(events) or not passed.isdisjoint(ids):
                raise AppError(
                    f"{title}: middleware has passed the same event on twice, and with transactional=True what it sends"
                    " would leave twice. Only after a failure may it be passed on again"
                )
            for event in events:
                if event.id in failed:
                    event.sink.drop(event, *failed.pop(event.id))
            before = [event.sink.kept(event) for event in events]
            passed.update(ids)
            try:
                await inner(events)
            except BaseException:
                for event, start in zip(events, before, strict=True):
                    if event.id not in inside:  # else a task that an inner layer has left behind goes on with it
                        passed.discard(event.id)
                        failed[event.id] = start, event.sink.kept(event)
                raise

        await layer(events, call_next)

    return call
