"""``ratelimit`` and ``bucket``: never more than the rate, never less than it for long, bounded memory."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidelog.flows.qoskit import OwnFeed, lab, on_seeds
from tidelog.client import strings
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.declare import Flow, op
from tidelog.flows.operators.keytext import LONGEST, key_text
from tidelog.flows.operators.ratelimit import SharedBuckets
from tidelog.flows.operators.serverrequests import ServerRequests
from tidelog.flows.operators.tokenbuckets import Buckets, Rate
from tidelog.flows.testing.virtualloop import VirtualLoop
from tidelog.testing import Server

WAYS = {"a": "out", "over": "overflow"}


@given(
    rate=st.integers(1, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.integers(0, 300), min_size=1, max_size=200),
)
def test_a_bucket_is_a_token_bucket(rate: int, burst: int, gaps: list[int]) -> None:
    """Against one that counts tokens, in milliseconds."""
    buckets = Buckets(10)
    kind = Rate.of(rate, burst)
    tokens = float(burst)
    now = 0
    for gap in gaps:
        now += gap
        tokens = min(tokens + gap * rate / 1000, float(burst))
        had = buckets.take("k", kind, now / 1000)
        if abs(tokens - 1) > 1e-6:  # at the edge either is right
            assert had == (tokens >= 1)
        if had:
            tokens -= 1
        else:
            wait = buckets.wait("k", kind, now / 1000)
            assert wait == pytest.approx((1 - tokens) / rate, abs=1e-6)


def test_buckets_are_bounded_and_those_used_last_stay() -> None:
    buckets = Buckets(2)
    kind = Rate.of(1, 1)
    assert all(buckets.take(key, kind, 0.0) for key in "abc")
    assert len(buckets) == 2
    assert not buckets.take("c", kind, 0.1)
    assert buckets.take("a", kind, 0.1)  # forgotten
    assert buckets.forgotten


PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.text()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3)))
def test_keys_are_short_and_one_for_each_value(value: Any) -> None:
    text = key_text(value)
    assert len(text.encode()) <= LONGEST
    assert text == key_text(value)
    assert text != key_text([value])


def test_keys_of_equal_objects_are_equal() -> None:
    assert key_text({"a": 1, "b": 2}) == key_text({"b": 2, "a": 1})
    assert key_text("1") != key_text(1)
    long = "x" * 1000
    assert key_text(long) != key_text(long + "x")
    with pytest.raises(ValueError, match="can't be a key"):
        key_text(object())


def test_block_holds_events_to_the_rate_and_loses_none() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("ratelimit", rate=100, burst=10)) as it:
            await it.connected()
            begun = loop.time()
            it.feed.feed(*range(1010))
            it.feed.end()
            await it.running.finished()
            assert it.sink("a").values == list(range(1010))
            assert loop.time() - begun == pytest.approx(10, abs=0.1)
            times = [when for when, _ in it.sink("a").got]
            assert all(later - first >= 0.9 for first, later in zip(times, times[110:], strict=False))
            assert not it.reasons

    on_seeds(story)


def test_block_by_key_lets_others_pass_and_keeps_their_order() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("ratelimit", rate=1, key="user")) as it:
            await it.connected()
            it.feed.feed(*({"user": user, "n": number} for number, user in enumerate("aaabcab")))
            it.feed.end()
            await it.running.finished()
            got = it.sink("a").values
            assert sorted(each["user"] for each in got[:3]) == ["a", "b", "c"]
            for user in "ab":
                mine = [each["n"] for each in got if each["user"] == user]
                assert mine == sorted(mine)

    on_seeds(story)


def test_discard_overflows() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("ratelimit", rate=10, method="discard"), sinks=WAYS) as it:
            await it.connected()
            it.feed.feed(*range(15))
            await it.until(lambda: len(it.feed.told) == 15)
            assert (len(it.sink("a").got), len(it.sink("over").got)) == (10, 5)
            assert it.node.counts["overflow"] == 5
            await asyncio.sleep(1)
            it.feed.feed(*range(15))
            await it.until(lambda: len(it.feed.told) == 30)
            assert (len(it.sink("a").got), len(it.sink("over").got)) == (20, 10)

    on_seeds(story)


def test_a_key_that_is_none_fails_the_event() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("ratelimit", rate=10, key="length(user)"), source=OwnFeed) as it:
            it.feed.feed({"user": "x"}, {"user": 1})
            await it.until(lambda: len(it.feed.told) == 2)
            assert sorted(it.feed.told) == [(0, "ok"), (1, "reject")]

    on_seeds(story)


def test_a_shared_limit_holds_for_all_who_share_it(tidelog_server: Server) -> None:
    """Four that take at the same time get together what one gets."""

    async def taker(seed: int, wanted: int) -> list[int]:
        asking = ServerRequests(_operator(tidelog_server.url))
        buckets = SharedBuckets(asking, "limit:", Rate.of(0.001, 100), random.Random(seed))
        taken = []
        for _ in range(10):
            found, wait = await buckets.take({"k": wanted, f"own{seed}": 1})
            assert found[f"own{seed}"] == 1
            taken.append(found["k"])
            if not found["k"]:
                assert wait > 100
        await asking.close()
        return taken

    async def story() -> None:
        taken = await asyncio.gather(*(taker(seed, 7) for seed in range(4)))
        assert sum(map(sum, taken)) == 100

    asyncio.run(story())


def test_instances_share_a_limit_through_the_server(tidelog_server: Server) -> None:
    async def story() -> None:
        limit = op("ratelimit", rate=50, per="1h", shared=True, method="discard")
        kinds: Any = {"sinks": WAYS, "server": tidelog_server.url}
        async with lab(limit, alias="lab.1", seed=1, **kinds) as one, lab(limit, alias="lab.2", seed=2, **kinds) as two:
            for it in (one, two):
                it.feed.feed(*range(40))
            await one.until(lambda: all(len(it.feed.told) == 40 for it in (one, two)), 20)
            assert len(one.sink("a").got) + len(two.sink("a").got) == 50
            assert len(one.sink("over").got) + len(two.sink("over").got) == 30

    asyncio.run(story())


def test_a_shared_limit_that_blocks_goes_on_by_and_by(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("ratelimit", rate=50, burst=1, shared=True), server=tidelog_server.url) as it:
            begun = asyncio.get_running_loop().time()
            it.feed.feed(*range(26))
            it.feed.end()
            await asyncio.wait_for(it.running.finished(), 20)
            assert it.sink("a").values == list(range(26))
            assert asyncio.get_running_loop().time() - begun >= 0.45

    asyncio.run(story())


def test_without_the_server_a_shared_limit_waits_and_says_so(tidelog_server: Server) -> None:
    async def story() -> None:
        async with lab(op("ratelimit", rate=1000, shared=True), server=tidelog_server.url) as it:
            it.feed.feed(1)
            await it.until(lambda: it.feed.told, 20)
            await asyncio.to_thread(tidelog_server.kill)
            it.feed.feed(2)
            await it.until(lambda: "unreachable:line.0" in it.reasons, 20)
            await asyncio.to_thread(tidelog_server.start)
            await it.until(lambda: len(it.feed.told) == 2 and not it.reasons, 20)

    asyncio.run(story())


def test_bucket_limits_each_group_of_a_class() -> None:
    async def story(loop: VirtualLoop) -> None:
        operator = op("bucket", **{"class": "kind", "rate": 3, "dimensions": ["host"]})
        async with lab(operator, sinks=WAYS) as it:
            await it.connected()
            values = [{"kind": kind, "host": host} for kind in "xy" for host in (1, 2) for _ in range(5)]
            it.feed.feed(*values)
            await it.until(lambda: len(it.feed.told) == 20)
            assert len(it.sink("a").got) == 12
            assert it.node.counts["overflow"] == 8
            await asyncio.sleep(1)
            it.feed.feed(*values)
            await it.until(lambda: len(it.feed.told) == 40)
            assert len(it.sink("a").got) == 24

    on_seeds(story)


def test_bucket_takes_class_and_rate_from_meta_and_fails_without() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("bucket"), sinks=WAYS, source=OwnFeed) as it:
            await it.connected()
            meta: list[dict[str, Any]] = [
                {"class": "x", "rate": 1}, {"class": "x", "rate": 1}, {"class": "x", "rate": 1, "dimensions": [7]},
                {"class": "x"}, {"rate": 1}, {"class": "x", "rate": "fast"}, {"class": "y", "rate": 0},
            ]  # fmt: skip
            it.feed.feed(*(Event(number, dict(each), number) for number, each in enumerate(meta)))
            await it.until(lambda: len(it.feed.told) == len(meta))
            assert sorted(it.sink("a").values) == [0, 2]
            assert sorted(it.sink("over").values) == [1, 6]
            assert sorted(each for each, status in it.feed.told if status == "reject") == [3, 4, 5]

    on_seeds(story)


def test_bucket_knows_so_many_groups_and_classes() -> None:
    async def story(loop: VirtualLoop) -> None:
        operator = op("bucket", **{"class": "kind", "rate": 1, "dimensions": ["host"], "cardinality": 3, "classes": 2})
        async with lab(operator, sinks=WAYS) as it:
            await it.connected()
            hosts = [{"kind": 0, "host": number} for number in (0, 1, 2, 3, 3, 0)]  # the last one is forgotten
            classes = [{"kind": number, "host": "x"} for number in (1, 2, 2, 1, 0)]  # the last one is forgotten
            it.feed.feed(*hosts, *classes)
            await it.until(lambda: len(it.feed.told) == 11)
            assert it.sink("over").values == [hosts[4], classes[2], classes[3]]
            assert it.node.counts["forgotten_classes"] == 2

    on_seeds(story)


@pytest.mark.parametrize(
    ("operator", "options", "text"),
    [
        ("ratelimit", {"rate": 0}, "rate: Expected `float` > 0.0"),
        ("ratelimit", {"rate": 1, "burst": 0}, "burst: Expected `int` >= 1"),
        ("ratelimit", {"rate": 1, "name": "n"}, "shared: true"),
        ("ratelimit", {"rate": 1, "key": "a["}, "key 'a\\['"),
        ("bucket", {"rate": -1}, "rate: Expected `float` > 0.0"),
        ("bucket", {"cardinality": 0}, "cardinality: Expected `int` >= 1"),
    ],
)
def test_options_that_make_no_sense(operator: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("line", op(operator, **options))


def test_what_is_shared_needs_a_server() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("a", "null")
    flow.pipeline("line", op("ratelimit", rate=1, shared=True))
    flow.connect("in -> line -> a")
    with pytest.raises(FlowFileError, match="ratelimit needs a tidelog server"):
        flow.spec()


def _operator(url: str) -> Any:
    """As much of an operator as ``ServerRequests`` needs."""

    class Around:
        server = url
        flow = "f"

    class Node:
        name = "o"
        context = Around()

        def trigger(self, kind: str, detail: str = "") -> None:
            raise AssertionError(detail)

        def restore(self, kind: str) -> None:
            pass

    class Of:
        node = Node()

    return Of()


def test_of_several_servers_the_leader_is_asked(tidelog_server: Server) -> None:
    async def story() -> None:
        asking = ServerRequests(_operator(f"redis://127.0.0.1:1,{tidelog_server.url}"))
        async with asyncio.timeout(20):
            assert await asking.together(strings.get("nothing")) == [None]
        await asking.close()

    asyncio.run(story())
