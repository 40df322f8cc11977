"""``dedup``: one of each key arrives; what failed is no duplicate of itself; marks of the dead end."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import OwnFeed, Target, lab
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import OK, REJECT, RETRY, TokenGroup
from tidelog.flows.declare import Flow, op
from tidelog.flows.operators.dedup import Item
from tidelog.testing import Server

WAIT = 20.0  # s


class Pairs(Operator):
    """One event of two, with the tokens of both."""

    def process(self, events: list[Event]) -> None:
        for one, two in zip(events[::2], events[1::2], strict=True):
            tokens = [each.token for each in (one, two) if each.token is not None]
            self.emit([Event({"k": one.value["k"], "both": True}, token=TokenGroup(tokens))])


def values(*keys: Any) -> list[dict[str, Any]]:
    return [{"k": key, "n": number} for number, key in enumerate(keys)]


def test_duplicates_are_discarded_and_others_are_not(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", "k"), server=tidelog_server.url) as it:
            it.feed.feed(*values(*"abcab"))
            await it.until(lambda: len(it.feed.told) == 5, WAIT)
            it.feed.feed(*values(*"abcde"))
            await it.until(lambda: len(it.feed.told) == 10, WAIT)
            assert Counter(each["k"] for each in it.sink("a").values) == Counter("abcde")
            assert it.node.counts["duplicates"] == 5

    asyncio.run(story())


def test_duplicates_go_to_their_port_where_it_leads_somewhere(tidelog_server: Server) -> None:
    async def story() -> None:
        ways = {"a": "out", "b": "duplicates"}
        async with lab(op("dedup", "k"), server=tidelog_server.url, sinks=ways) as it:
            it.feed.feed(*values("a", "a", "b"))
            await it.until(lambda: len(it.feed.told) == 3, WAIT)
            assert [each["n"] for each in it.sink("b").values] == [1]

    asyncio.run(story())


@pytest.mark.parametrize("status", [RETRY, REJECT])
def test_what_failed_is_no_duplicate_of_itself(tidelog_server: Server, status: int) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", lease="1h"), server=tidelog_server.url, source=OwnFeed) as it:
            it.sink("a").answer = lambda event: (status, "broken")
            it.feed.feed({"k": 1})
            await it.until(lambda: it.feed.told, WAIT)
            it.sink("a").answer = lambda event: OK
            it.feed.feed({"k": 1})  # at once: the source hears of it when the mark is gone
            await it.until(lambda: len(it.feed.told) == 2, WAIT)
            assert it.feed.told[1] == (1, "ok")
            it.feed.feed({"k": 1})
            await it.until(lambda: len(it.feed.told) == 3, WAIT)
            assert it.feed.told[2] == (2, "discard")
            assert len(it.sink("a").got) == 2

    asyncio.run(story())


def test_one_whose_key_is_under_way_waits_and_takes_its_turn_if_the_first_fails(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", lease="1h"), server=tidelog_server.url, source=OwnFeed) as it:
            sink = it.sink("a")
            sink.answer = lambda event: None
            it.feed.feed(*values("x", "x", "x"))
            await it.until(lambda: it.operator.kept() == 2 and len(sink.held) == 1, WAIT)
            assert not it.feed.told
            sink.answer = lambda event: OK
            sink.context.answer(sink.held[0], RETRY, "broken")
            await it.until(lambda: len(it.feed.told) == 3, WAIT)
            assert Counter(status for _, status in it.feed.told) == Counter(["retry", "ok", "discard"])
            assert len(sink.got) == 2

    asyncio.run(story())


def test_instances_know_of_each_other(tidelog_server: Server) -> None:
    async def story() -> None:
        kinds: dict[str, Any] = {"server": tidelog_server.url}
        operator = op("dedup", "k")
        async with lab(operator, alias="lab.1", **kinds) as one, lab(operator, alias="lab.2", **kinds) as two:
            for it in (one, two):
                it.sink("a").answer = lambda event: RETRY if event.attempt == 1 and event.value["n"] % 3 == 0 else OK
                it.feed.feed(*values(*range(1000)))
                it.feed.feed(*values(*range(1000)))
            for it in (one, two):
                it.feed.end()
                await asyncio.wait_for(it.running.finished(), WAIT)
            assert {each["k"] for it in (one, two) for each in it.sink("a").values} == set(range(1000))
            told = Counter(status for it in (one, two) for _, status in it.feed.told)
            assert told == {"ok": 1000, "discard": 3000}

    asyncio.run(story())


def test_the_mark_of_one_that_died_ends_with_its_lease(tidelog_server: Server) -> None:
    async def story() -> None:
        kinds: dict[str, Any] = {"server": tidelog_server.url, "source": OwnFeed}
        operator = op("dedup", key="k", lease="700ms")
        async with lab(operator, **kinds) as it:
            it.sink("a").answer = lambda event: None
            it.feed.feed({"k": 1})
            await it.until(lambda: it.sink("a").held, WAIT)
            it.node.context.debug = False
        async with lab(operator, **kinds) as it:
            it.feed.feed({"k": 1})
            await it.until(lambda: it.operator.kept() == 1, WAIT)
            await it.until(lambda: it.feed.told, WAIT)
            assert it.feed.told == [(0, "ok")]

    asyncio.run(story())


def test_what_arrived_is_known_for_ttl(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", ttl="1h", name="orders"), server=tidelog_server.url) as it:
            it.feed.feed({"k": "a"})
            await it.until(lambda: it.feed.told, WAIT)
        with tidelog_server.client() as client:
            assert client.redis.get('tidelog:flows:dedup:orders:"a"') == b"done"
            assert 3_500_000 < client.redis.pttl('tidelog:flows:dedup:orders:"a"') <= 3_600_000

    asyncio.run(story())


def test_members_of_one_event_hear_the_outcome(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(Pairs, op("dedup", "k"), server=tidelog_server.url, source=OwnFeed) as it:
            it.sink("a").answer = lambda event: [(OK, ""), (RETRY, "busy")] if len(it.sink("a").got) == 1 else OK
            it.feed.feed({"k": 1}, {"k": 1})
            await it.until(lambda: len(it.feed.told) == 2, WAIT)
            assert sorted(it.feed.told) == [(0, "ok"), (1, "retry")]
            it.feed.feed({"k": 1}, {"k": 1})  # a part of it failed: it is not done
            await it.until(lambda: len(it.feed.told) == 4, WAIT)
            assert len(it.sink("a").got) == 2

    asyncio.run(story())


def test_when_the_server_dies_and_comes_back_nothing_is_lost(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", lease="1s"), server=tidelog_server.url) as it:
            sink = it.sink("a")
            sink.delay = 0.001
            it.feed.feed(*values(*range(3000)))
            await it.until(lambda: len(it.feed.told) > 100, WAIT)
            await asyncio.to_thread(tidelog_server.kill)
            it.feed.feed(*values(*range(3000, 4000)))
            await it.until(lambda: "unreachable:line.0" in it.reasons, WAIT)
            await asyncio.to_thread(tidelog_server.start)
            it.feed.end()
            await asyncio.wait_for(it.running.finished(), 2 * WAIT)
            assert {each["k"] for each in sink.values} == set(range(4000))

    asyncio.run(story())


def test_so_many_wait_and_no_more(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", max_waiting=10), server=tidelog_server.url, queue=1) as it:
            it.sink("a").answer = lambda event: None
            it.feed.feed({"k": 0})
            await it.until(lambda: it.sink("a").held, WAIT)
            for _ in range(30):
                it.feed.feed({"k": 0})
                await asyncio.sleep(0.01)
            await it.until(lambda: it.operator.busy(), WAIT)
            assert it.operator.kept() <= 10 + 1
            it.sink("a").answer = lambda event: OK
            it.sink("a").context.answer(it.sink("a").held[0], OK)
            await it.until(lambda: len(it.feed.told) == 31, WAIT)
            assert len(it.sink("a").got) == 1

    asyncio.run(story())


def test_a_drain_gives_back_what_waits(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", key="k", lease="1h"), server=tidelog_server.url, source=OwnFeed) as it:
            it.sink("a").answer = lambda event: None
            it.feed.feed(*values("x", "x", "x"))
            await it.until(lambda: it.operator.kept() == 2, WAIT)
            draining = asyncio.ensure_future(it.running.drain(WAIT))
            await it.until(lambda: len(it.feed.told) == 2, WAIT)
            assert {status for _, status in it.feed.told} == {"retry"}
            it.sink("a").context.answer(it.sink("a").held[0], OK)
            assert (await draining).complete

    asyncio.run(story())


def test_an_event_without_key_fails(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("dedup", "k"), server=tidelog_server.url, source=OwnFeed) as it:
            it.feed.feed({"other": 1}, "text", {"k": 1})
            await it.until(lambda: len(it.feed.told) == 3, WAIT)
            assert sorted(it.feed.told) == [(0, "reject"), (1, "reject"), (2, "ok")]

    asyncio.run(story())


def test_nothing_is_left_of_what_went_through(tidelog_server: Server) -> None:
    """Events and tokens are not looked at by the collector: a circle of them would stay for ever."""

    async def story() -> None:
        line = (op("dedup", key="k", name="circle"), op("retry"), op("backpressure", "1s"))
        async with lab(*line, server=tidelog_server.url) as it:
            it.feed.feed(*values(*range(500), *range(500)))
            await it.until(lambda: len(it.feed.told) == 1000, WAIT)
            gc.collect()
            await it.until(
                lambda: not any(type(each) is Item and ":circle:" in each.key for each in gc.get_objects()), WAIT
            )

    asyncio.run(story())


def test_options_that_make_no_sense() -> None:
    for options, text in (({}, "'key' is missing"), ({"key": "a["}, "key"), ({"key": "a", "ttl": 0}, "ttl: 0 is")):
        with pytest.raises(FlowFileError, match=text):
            Flow("f").pipeline("line", op("dedup", options))
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("a", Target)
    flow.pipeline("line", op("dedup", "k"))
    flow.connect("in -> line -> a")
    with pytest.raises(FlowFileError, match="dedup needs a tidelog server"):
        flow.spec()
