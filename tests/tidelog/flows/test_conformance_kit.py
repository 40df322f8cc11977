"""The conformance kit of connectors finds the mistakes of a source and of a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from tests.tidelog.flows.conformancekit import VALUES
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event
from tidelog.flows.api.connector import DEFERRED, Sink, Source
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.tokens import OK, Token
from tidelog.flows.testing import ConformanceError, check_sink, check_source


class Numbers(Source):
    """A source of numbers with a mistake, which a subclass makes."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[int] = []
        self.more = asyncio.Event()

    def event(self, number: int) -> Event:
        return Event(number, None, number)

    async def pull(self, limit: int) -> list[Event] | None:
        if not self.left:
            self.more.clear()
            await self.wait(self.more.wait())
        found, self.left = self.left[:limit], self.left[limit:]
        return [self.event(each) for each in found]


async def add(source: Any, count: int) -> None:
    source.left += range(count)
    source.more.set()


class TooMany(Numbers):
    async def pull(self, limit: int) -> list[Event] | None:
        return await super().pull(limit + 4)


class NoId(Numbers):
    def event(self, number: int) -> Event:
        return Event(number)


class Deaf(Numbers):
    """Ignores interruptions."""

    async def pull(self, limit: int) -> list[Event] | None:
        await until(lambda: self.left)
        return await super().pull(limit)


class Ends(Numbers):
    async def pull(self, limit: int) -> list[Event] | None:
        return await super().pull(limit) if self.left else None


class WithToken(Numbers):
    def event(self, number: int) -> Event:
        event = Event(number, None, number)
        event.token = Token(cast("Any", None))
        return event


class ClosesOnce(Numbers):
    closed = 0

    async def close(self) -> None:
        self.closed += 1
        if self.closed > 2:
            raise RuntimeError("closed before")


class Unsettled(Numbers):
    async def settled(self, tokens: Sequence[Token]) -> None:
        raise KeyError(tokens[0].key)


class WithoutInit(Source):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (TooMany, "the limit is a maximum"),
        (NoId, "an event has no id"),
        (Deaf, "after interrupt"),
        (Ends, "pull returned None before there were events"),
        (WithToken, "a source must not set token"),
        (ClosesOnce, "a second call of close raised RuntimeError"),
        (Unsettled, "settled raised KeyError"),
        (WithoutInit, "super"),
    ],
)
def test_a_wrong_source_fails(wrong: type[Source], text: str) -> None:
    with pytest.raises(ConformanceError, match=text):
        check_source(wrong, produce=add, patience=0.5)


def test_redelivery_is_checked() -> None:
    check_source(Numbers, produce=add)
    with pytest.raises(ConformanceError, match="pull returned 0 of"):
        check_source(Numbers, produce=add, redelivers=True, patience=0.5)


class Writes(Sink):
    """A sink whose ``write`` is given."""

    def __init__(self, result: Callable[[Any, list[Event]], Any]) -> None:
        self._result = result

    async def write(self, events: list[Event]) -> Any:
        found = self._result(self, events)
        return await found if isinstance(found, Awaitable) else found


def answered(sink: Any, events: list[Event]) -> Any:
    for event in events[1:]:
        sink.context.answer(event, OK)
    return DEFERRED


def twice(sink: Any, events: list[Event]) -> Any:
    for event in [*events, events[0]]:
        sink.context.answer(event, OK)
    return DEFERRED


def undeclared(sink: Any, events: list[Event]) -> Any:
    sink.context.answer(events[0], OK)


def refused(_: Any, events: list[Event]) -> Any:
    if any(isinstance(each.value, str) for each in events):
        raise TypeError("no text")


def whole_batch(_: Any, events: list[Event]) -> Any:
    bad = any(isinstance(each.value, str) for each in events)
    return [(2, "bad")] * 2 + [OK] * (len(events) - 2) if bad else None


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda _, events: [OK] * (len(events) - 1), "it must return one for each"),
        (lambda _, events: [9] * len(events), "is not a status"),
        (lambda _, events: ["ok"] * len(events), "is not an outcome"),
        (lambda _, events: [(3, "busy")] * len(events), "was settled retry"),
        (lambda _, events: asyncio.sleep(60), "write did not return"),
        (answered, "answered 4 of 5 events"),
        (twice, "answered twice"),
        (undeclared, "did not return DEFERRED"),
        (refused, "write raised TypeError"),
        (lambda *_: None, "it must be rejected"),
        (whole_batch, "changed the outcomes of others"),
    ],
)
def test_a_wrong_sink_fails(result: Any, text: str) -> None:
    with pytest.raises(ConformanceError, match=text):
        check_sink(lambda: Writes(result), VALUES, invalid=["text"], patience=0.3)


def test_a_sink_that_loses_events_fails() -> None:
    async def nothing(_: Any) -> list[Any]:
        return []

    with pytest.raises(ConformanceError, match="did not arrive"):
        check_sink(lambda: Writes(lambda *_: None), VALUES, written=nothing)


def test_a_right_sink_passes() -> None:
    def write(_: Any, events: list[Event]) -> Any:
        if len(events) == 1 and isinstance(events[0].value, str):
            raise RejectError("text")
        return [(2, "text") if isinstance(each.value, str) else OK for each in events]

    check_sink(lambda: Writes(write), VALUES, invalid=["text"])


@in_loop
async def test_an_interruption_at_the_end_of_a_wait_is_not_lost() -> None:
    source = Numbers()
    work = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(source.wait(work))
    await asyncio.sleep(0)
    work.set_result(None)
    source.interrupt()
    assert await waiting
    assert not await source.wait(asyncio.sleep(60))
