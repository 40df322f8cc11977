"""``redis_pubsub``, ``redis_list`` and ``redis_stream`` with a real redis-server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.redis import processinglist


def reading(kind: str, sink: Any, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.connector("in", kind, **options)
    flow.connector("out", sink)
    flow.connect("in -> out")
    return flow


def writing(kind: str, values: list[Any], **options: Any) -> Flow:
    async def source() -> Any:
        for value in values:
            yield value

    flow = Flow("orders")
    flow.connector("in", source, on_error="dead_letter")
    flow.connector("out", kind, **options)
    flow.connect("in -> out")
    return flow


async def written(kind: str, values: list[Any], **options: Any) -> None:
    async with running(writing(kind, values, **options)) as made, asyncio.timeout(20):
        await made.finished()


def kept() -> tuple[list[Any], Any]:
    """Values, and a sink that keeps them."""
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    return seen, sink


@pytest.mark.parametrize("kind", ["redis_list", "redis_pubsub"])
@in_loop
async def test_collected_messages_are_written_at_the_end_of_a_batch(
    redis_url: str, redis_client: Any, kind: str
) -> None:
    after = ["separate", {"collect": {"count": 100}}]
    heard = redis_client.pubsub()
    heard.subscribe("jobs")
    where = {"channel": "jobs"} if kind == "redis_pubsub" else {"key": "jobs"}
    await written(kind, [1, 2, 3], url=redis_url, codec="string", postprocessors=after, **where)
    found = redis_client.lrange("jobs", 0, -1)
    while message := heard.get_message(timeout=1):
        if message["type"] == "message":
            found.append(message["data"])
    heard.close()
    assert b"".join(found) == b"1\n2\n3\n"


# -- publish and subscribe -----------------------------------------------------------------------------------
@in_loop
async def test_what_is_published_is_heard(redis_url: str, redis_client: Any) -> None:
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.meta["channel"], event.value))

    options = {"url": redis_url, "channel": ["a", "b"], "pattern": "orders.*"}
    async with running(reading("redis_pubsub", sink, **options)):
        await until(
            lambda: redis_client.pubsub_numsub("a", "b") == [(b"a", 1), (b"b", 1)] and redis_client.pubsub_numpat() == 1
        )
        for number in range(600):
            redis_client.publish("a", json.dumps({"n": number}))
        redis_client.publish("orders.new", '"x"')
        redis_client.publish("other", '"y"')
        redis_client.publish("b", '"z"')
        await until(lambda: len(seen) == 602)
    assert seen == [("a", {"n": n}) for n in range(600)] + [("orders.new", "x"), ("b", "z")]


@in_loop
async def test_events_are_published(redis_url: str, redis_client: Any) -> None:
    heard = redis_client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe("a")
    await until(lambda: redis_client.pubsub_numsub("a") == [(b"a", 1)])
    await written("redis_pubsub", [{"n": 1}, {"n": 2}], url=redis_url, channel="a")
    found: list[bytes] = []

    def hear() -> bool:
        message = heard.get_message(timeout=0.1)
        if message is not None:
            found.append(message["data"])
        return len(found) == 2

    await until(hear)
    assert found == [b'{"n":1}', b'{"n":2}']
    heard.close()


# -- lists ---------------------------------------------------------------------------------------------------
@in_loop
async def test_a_list_is_emptied_in_order(redis_url: str, redis_client: Any) -> None:
    seen, sink = kept()
    redis_client.rpush("jobs", *(json.dumps(n) for n in range(1500)))
    async with running(reading("redis_list", sink, url=redis_url, key="jobs")):
        await until(lambda: len(seen) == 1500 and not redis_client.exists("jobs:processing:orders.in"))
        redis_client.rpush("jobs", '"late"')
        await until(lambda: seen[-1] == "late" and not redis_client.exists("jobs:processing:orders.in"))
    assert seen == [*range(1500), "late"]


@in_loop
async def test_elements_that_were_not_settled_come_again(redis_url: str, redis_client: Any) -> None:
    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    redis_client.rpush("jobs", 1, 1, 2, 3)
    async with running(reading("redis_list", stuck, url=redis_url, key="jobs")):
        await until(lambda: redis_client.llen("jobs:processing:orders.in") == 4)
    seen, sink = kept()
    async with running(reading("redis_list", sink, url=redis_url, key="jobs")):
        await until(lambda: len(seen) == 4 and not redis_client.exists("jobs:processing:orders.in"))
    assert sorted(seen) == [1, 1, 2, 3]
    assert redis_client.llen("jobs") == 0


@in_loop
@pytest.mark.parametrize("crashed", [False, True])
async def test_what_a_renamed_flow_held_is_put_back(
    redis_url: str, redis_client: Any, crashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processinglist, "EVERY", 0.1)
    monkeypatch.setattr(processinglist, "ALIVE", 1.0)

    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    redis_client.rpush("jobs", *range(300))
    async with running(reading("redis_list", stuck, url=redis_url, key="jobs")):
        await until(lambda: redis_client.llen("jobs:processing:orders.in") == 300)
        assert redis_client.ttl("jobs:processing:orders.in:alive") >= 0
    if crashed:
        redis_client.set("jobs:processing:orders.in:alive", "1", px=1000)
    redis_client.rpush("jobs", 300)
    seen, sink = kept()
    renamed = reading("redis_list", sink, url=redis_url, key="jobs")
    renamed.name = "sales"
    async with running(renamed):
        await until(lambda: len(seen) == 301 and not redis_client.exists("jobs:processing:sales.in"))
    assert sorted(seen) == list(range(301))
    assert crashed or seen == list(range(301))
    assert redis_client.smembers("jobs:processing") == {b"jobs:processing:sales.in"}
    assert not redis_client.keys("jobs:processing:*:alive")


async def looks(redis_client: Any) -> None:
    """Until the source ``sales`` has looked for others several times."""
    await until(lambda: redis_client.exists("jobs:processing:sales.in:alive"))

    def looked() -> int:
        return int(redis_client.info("commandstats").get("cmdstat_smembers", {}).get("calls", 0))

    before = looked()
    await until(lambda: looked() > before + 4)


@in_loop
async def test_what_a_running_source_holds_is_left_to_it(
    redis_url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processinglist, "EVERY", 0.05)

    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    redis_client.rpush("jobs", 1, 2)
    async with running(reading("redis_list", stuck, url=redis_url, key="jobs")):
        await until(lambda: redis_client.llen("jobs:processing:orders.in") == 2)
        seen, sink = kept()
        other = reading("redis_list", sink, url=redis_url, key="jobs")
        other.name = "sales"
        async with running(other):
            await looks(redis_client)
        assert seen == []
        assert redis_client.llen("jobs:processing:orders.in") == 2


@in_loop
async def test_a_source_whose_sign_of_life_has_expired_is_waited_for(
    redis_url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processinglist, "EVERY", 0.05)
    redis_client.rpush("jobs:processing:orders.in", 1, 2)  # as after a server that was away: no sign of anybody
    redis_client.sadd("jobs:processing", "jobs:processing:orders.in")
    seen, sink = kept()
    renamed = reading("redis_list", sink, url=redis_url, key="jobs")
    renamed.name = "sales"
    async with running(renamed):
        await looks(redis_client)
    assert seen == []
    assert redis_client.llen("jobs:processing:orders.in") == 2


@in_loop
async def test_signs_of_life_go_on_after_a_refusal(
    redis_url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processinglist, "EVERY", 0.05)
    seen, sink = kept()

    def refused() -> int:
        return int(redis_client.info("errorstats").get("errorstat_NOREPLICAS", {}).get("count", 0))

    async with running(reading("redis_list", sink, url=redis_url, key="jobs")):
        await until(lambda: redis_client.exists("jobs:processing:orders.in:alive"))
        before = refused()
        redis_client.config_set("min-replicas-to-write", 1)
        try:
            await until(lambda: refused() > before)
        finally:
            redis_client.config_set("min-replicas-to-write", 0)
        redis_client.delete("jobs:processing:orders.in:alive")
        await until(lambda: redis_client.exists("jobs:processing:orders.in:alive"))
        redis_client.rpush("jobs", 7)
        await until(lambda: seen == [7])


@in_loop
async def test_a_user_without_rights_to_more_than_the_lists_reads_them(redis_url: str, redis_client: Any) -> None:
    redis_client.acl_setuser("narrow", enabled=True, passwords=["+pw"], keys=["jobs", "jobs:processing:orders.in"],
                       commands=["+@all"], reset=True)  # fmt: skip
    redis_client.rpush("jobs", 1, 2)
    seen, sink = kept()
    try:
        async with running(reading("redis_list", sink, url=redis_url.replace("//", "//narrow:pw@"), key="jobs")):
            await until(lambda: len(seen) == 2)
    finally:
        redis_client.acl_deluser("narrow")


@in_loop
async def test_an_element_that_fails_is_tried_again_by_the_runtime(redis_url: str, redis_client: Any) -> None:
    attempts: list[int] = []

    async def sink(event: Event) -> None:
        attempts.append(event.attempt)
        if event.attempt < 3:
            raise OSError("busy")

    redis_client.rpush("jobs", 7)
    async with running(reading("redis_list", sink, url=redis_url, key="jobs", on_error={"retry": {"first": "10ms"}})):
        await until(lambda: len(attempts) == 3 and not redis_client.exists("jobs:processing:orders.in"))
    assert attempts == [1, 2, 3]


@in_loop
async def test_a_lost_connection_is_made_again_without_duplicates(redis_url: str, redis_client: Any) -> None:
    gate = asyncio.Event()
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        await gate.wait()
        seen.append(value)

    redis_client.rpush("jobs", 1, 2, 3)
    flow = reading("redis_list", sink, url=redis_url, key="jobs", reconnect={"retry": {"first": "10ms"}})
    async with running(flow) as made:
        await until(lambda: redis_client.llen("jobs:processing:orders.in") == 3)
        await until(
            lambda: redis_client.info("clients")["blocked_clients"] == 1
        )  # else nothing is lost with the connection
        redis_client.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: made.graph.connections["in"].connects == 2)
        assert redis_client.llen("jobs") == 0
        gate.set()
        await until(lambda: not redis_client.exists("jobs:processing:orders.in"))
        redis_client.rpush("jobs", 4)
        await until(lambda: len(seen) == 4)
    assert seen == [1, 2, 3, 4]


@in_loop
async def test_events_become_elements(redis_url: str, redis_client: Any) -> None:
    await written("redis_list", [{"n": n} for n in range(700)], url=redis_url, key="out", max_length=100)
    assert [json.loads(raw)["n"] for raw in redis_client.lrange("out", 0, -1)] == list(range(600, 700))


def pending(redis_client: Any) -> int:
    """-1: the group is not there yet."""
    try:
        return int(redis_client.xpending("s", "g")["pending"])
    except redis.ResponseError:
        return -1


# -- streams -------------------------------------------------------------------------------------------------
@in_loop
async def test_a_stream_is_read_and_acknowledged(redis_url: str, redis_client: Any) -> None:
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.id, event.value))

    ids = [redis_client.xadd("s", {"n": n}).decode() for n in range(1200)]
    async with running(reading("redis_stream", sink, url=redis_url, key="s", group="g")):
        await until(lambda: len(seen) == 1200 and pending(redis_client) == 0)
        late = redis_client.xadd("s", {"n": "late"}).decode()
        await until(lambda: len(seen) == 1201 and pending(redis_client) == 0)
    assert seen == [(at, {"n": str(n)}) for n, at in enumerate(ids)] + [(late, {"n": "late"})]


@in_loop
async def test_a_new_process_gets_what_the_one_before_had_under_way(redis_url: str, redis_client: Any) -> None:
    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    redis_client.xadd("s", {"n": 1})
    redis_client.xadd("s", {"n": 2})
    async with running(reading("redis_stream", stuck, url=redis_url, key="s", group="g")):
        await until(lambda: pending(redis_client) == 2)
    seen, sink = kept()
    async with running(reading("redis_stream", sink, url=redis_url, key="s", group="g")):
        await until(lambda: len(seen) == 2 and pending(redis_client) == 0)
    assert seen == [{"n": "1"}, {"n": "2"}]


@in_loop
async def test_what_a_dead_consumer_had_is_taken_over_and_what_a_living_one_has_is_not(
    redis_url: str, redis_client: Any
) -> None:
    redis_client.xadd("s", {"n": "dead's"})
    redis_client.xgroup_create("s", "g", "0")
    redis_client.xreadgroup("g", "dead", {"s": ">"})
    gate = asyncio.Event()
    seen: list[str] = []

    def sink(name: str) -> Any:
        async def take(value: Any) -> None:
            seen.append(f"{name} {value['n']}")
            await gate.wait()

        return take

    options = {"url": redis_url, "key": "s", "group": "g", "claim": "1s"}
    async with running(reading("redis_stream", sink("one"), **options)):
        await until(lambda: seen == ["one dead's"])
        async with running(reading("redis_stream", sink("two"), **options), "orders.2"):
            await asyncio.sleep(2.5)  # longer than the claim; a busy machine may stall for less than that
            assert seen == ["one dead's"]
            gate.set()
            await until(lambda: pending(redis_client) == 0)


@in_loop
async def test_events_become_entries(redis_url: str, redis_client: Any) -> None:
    await written("redis_stream", [{"n": 1, "deep": {"a": [1]}}, {"n": 2}], url=redis_url, key="out")
    assert [fields for _, fields in redis_client.xrange("out")] == [{b"n": b"1", b"deep": b'{"a":[1]}'}, {b"n": b"2"}]


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("redis_pubsub", {}, "channel is missing"),
        ("redis_list", {"key": "a", "url": "http://x"}, "redis://"),
        ("redis_list", {"key": "a", "processing": "a"}, "another list"),
        ("redis_stream", {}, "key is missing"),
        ("redis_stream", {"key": "a", "claim": "1ms"}, "claim"),
    ],
)
def test_wrong_options_are_named(kind: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("orders").connector("in", kind, **options)
