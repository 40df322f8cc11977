"""What connectors do to their entities: errors of old connections, cancellations from inside, wrong outcomes."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow
from tidelog.flows import Event
from tidelog.flows.api.connector import DEFERRED, Deferred
from tidelog.flows.api.tokens import OK, RETRY, Token
from tidelog.flows.connectors.builtin.python import GeneratorSource
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate


def test_an_error_of_an_old_connection_does_not_end_the_new_one() -> None:
    async def story(loop: VirtualLoop) -> None:
        gone = ConnectionError("gone")

        async def write(events: list[Event]) -> None:
            if not events[0].id and not sink.values:  # the first notices at once, the others after a while
                sink.values.append("first")
                raise gone
            if running.graph.connections["out"].connects == 1:
                await asyncio.sleep(10)
                raise gone

        source, sink = Numbers(4, owns_policy=False), Taking(write, concurrency=4)
        running = flow(loop, {"in": source, "out": sink}, {}, "in out", options={"in": {"max_unsettled": 4}})
        pulled = source.pull

        async def one_by_one(limit: int) -> list[Event] | None:
            return await pulled(1)

        source.pull = one_by_one  # type: ignore[method-assign]
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert source.acknowledged == {0, 1, 2, 3}
        assert running.graph.connections["out"].connects == 2
        await running.stop()

    simulate(story)


def test_a_connection_that_the_system_gave_up_is_made_again() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write(events: list[Event]) -> None:
            if running.graph.connections["out"].connects == 1:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        source = Numbers(2, owns_policy=False)
        running = flow(loop, {"in": source, "out": Taking(write)}, {}, "in out")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert running.graph.connections["out"].connects == 2
        await running.stop()

    simulate(story)


def test_a_write_that_is_cancelled_from_inside_gives_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write(events: list[Event]) -> None:
            if events[0].attempt == 1:
                answer = asyncio.get_running_loop().create_future()
                answer.cancel()
                await answer

        source = Numbers(2, owns_policy=False)
        running = flow(loop, {"in": source, "out": Taking(write)}, {}, "in out")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert source.acknowledged == {0, 1}
        await running.stop()

    simulate(story)


def test_a_flow_ends_although_connecting_has_lost_a_cancellation() -> None:
    """asyncio.wait_for of Python 3.11, which redis-py uses, loses a cancellation that arrives with the result."""

    class Losing(Taking):
        async def connect(self) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.calls.append("lost")

    async def story(loop: VirtualLoop) -> None:
        sink = Losing()
        running = flow(loop, {"in": Numbers(1), "out": sink}, {}, "in out")
        await running.start()
        await asyncio.sleep(1)
        async with asyncio.timeout(100):
            await running.stop()
        assert sink.calls == ["lost"]

    simulate(story)


def test_calls_of_a_source_that_are_cancelled_from_inside_are_made_again() -> None:
    class Cancelled(Numbers):
        cancelled: set[str]

        def once(self, what: str) -> None:
            if what not in self.cancelled:
                self.cancelled.add(what)
                raise asyncio.CancelledError

        async def connect(self) -> None:
            self.once("connect")

        async def pull(self, limit: int) -> list[Event] | None:
            self.once("pull")
            return await super().pull(limit)

        async def settled(self, tokens: Sequence[Token]) -> None:
            self.once("settled")
            await super().settled(tokens)

    async def story(loop: VirtualLoop) -> None:
        source = Cancelled(3)
        source.cancelled = set()
        running = flow(loop, {"in": source, "out": Taking()}, {}, "in out")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert source.cancelled == {"connect", "pull", "settled"}
        assert source.acknowledged == {0, 1, 2}
        await running.stop()

    simulate(story)


@pytest.mark.parametrize("outcomes", [[None, OK], [OK, 7], [OK, "ok"], 5, [OK, [(9, "")]], [OK, (-1, "")]])
def test_outcomes_that_are_none_give_back_and_fail_nothing(outcomes: Any) -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write(events: list[Event]) -> Any:
            return outcomes if events[0].attempt == 1 else None

        source = Numbers(2, owns_policy=False)
        running = flow(loop, {"in": source, "out": Taking(write)}, {}, "in out")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert running.error == ""
        assert source.acknowledged == {0, 1}
        assert running.graph.sources["in"].counts["again"]
        await running.stop()

    simulate(story)


def test_what_was_answered_is_not_kept_until_the_timeout() -> None:
    class Value:
        pass

    async def story(loop: VirtualLoop) -> None:
        held: list[Event] = []

        async def write(events: list[Event]) -> Deferred:
            held.extend(events)
            return DEFERRED

        class Values(Numbers):
            async def pull(self, limit: int) -> list[Event] | None:
                events = await super().pull(limit)
                for each in events or ():
                    each.value = value = Value()
                    left.append(weakref.ref(value))
                return events

        left: list[weakref.ref[Value]] = []
        sink = Taking(write)
        options = {"out": {"timeout": 3600.0}}
        running = flow(loop, {"in": Values(3, ends=False), "out": sink}, {}, "in out", options=options)
        await running.start()
        await asyncio.sleep(1)
        assert len(held) == 3
        for event in held:
            sink.context.answer(event, OK)
        del event
        held.clear()
        sink.values.clear()
        await asyncio.sleep(1)
        gc.collect()
        assert [each() for each in left] == [None] * 3
        await running.stop()

    simulate(story)


def test_what_a_generator_gave_before_its_error_is_not_lost() -> None:
    async def story(loop: VirtualLoop) -> None:
        begun = 0

        async def numbers() -> Any:
            nonlocal begun
            begun += 1
            if begun == 1:
                yield 0
                yield 1
                raise ConnectionError("gone")
            yield 2

        sink = Taking()
        running = flow(loop, {"in": GeneratorSource(numbers), "out": sink}, {}, "in out")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert sink.values == [0, 1, 2]
        await running.stop()

    simulate(story)


def test_unreadable_events_are_tried_again_where_they_went() -> None:
    class Unreadable(Numbers):
        async def pull(self, limit: int) -> list[Event] | None:
            events = await super().pull(limit)
            for each in events or ():
                each.path = "err"
            return events

    async def story(loop: VirtualLoop) -> None:
        async def fails_once(events: list[Event]) -> list[int]:
            return [RETRY if each.attempt == 1 else OK for each in events]

        source, out, err = Unreadable(2, owns_policy=False), Taking(), Taking(fails_once)
        running = flow(loop, {"in": source, "out": out, "bad": err}, {}, "in out", "in.err bad")
        await running.start()
        async with asyncio.timeout(100):
            await running.finished()
        assert out.values == []
        assert err.values == [0, 1, 0, 1]
        await running.stop()

    simulate(story)


def test_a_close_that_hangs_does_not_keep_a_connector_from_connecting_again() -> None:
    class Hanging(Taking):
        async def close(self) -> None:
            await asyncio.get_running_loop().create_future()

    async def story(loop: VirtualLoop) -> None:
        async def write(events: list[Event]) -> None:
            if running.graph.connections["out"].connects == 1:
                raise ConnectionError("gone")

        source = Numbers(2, owns_policy=False)
        running = flow(loop, {"in": source, "out": Hanging(write)}, {}, "in out")
        await running.start()
        async with asyncio.timeout(1000):
            await running.finished()
            assert source.acknowledged == {0, 1}
            await running.stop()

    simulate(story)
