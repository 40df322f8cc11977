"""``branch``: requests through operators and an HTTP server, responses in the event, failures, outages, and caches."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from aiohttp import web

from tests.tidelog.flows.netkit import peer
from tests.tidelog.flows.opskit import Kit, flow_of
from tests.waiting import until
from tidelog.flows import Event, op
from tidelog.flows.branching.responsecache import OVERHEAD, MemoryCache
from tidelog.flows.declare import Op, operator_spec
from tidelog.flows.files import restrictions
from tidelog.flows.testing import PipelineTest
from tidelog.options.structs import Problems
from tidelog.testing import Server, free_port

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flows" / "customers.yaml"
REQUEST = {"request": "{n: n}", "set": {"answer": "@"}}


def branch(url: str, client: dict[str, Any] | None = None, **options: Any) -> Op:
    http = {
        "url": url + "/{n}",
        "method": "GET",
        "reconnect": {"retry": {"first": "50ms", "most": "50ms"}},
        **(client or {}),
    }
    return op("branch", http_client=http, **{**REQUEST, **options})


class Answers:
    """An HTTP handler that counts requests and answers with their path."""

    def __init__(self, status: Callable[[str], int] = lambda _: 200) -> None:
        self.seen: Counter[str] = Counter()
        self.status = status
        self.open = asyncio.Event()
        self.open.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.strip("/")
        self.seen[name] += 1
        await self.open.wait()
        return web.json_response({"path": name}, status=self.status(name))


def run(scenario: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


async def settled(kit: Kit, count: int) -> list[str]:
    await until(lambda: len(kit.feed.outcomes) == count)
    return [outcomes[0][0] for _, outcomes in sorted(kit.feed.outcomes.items())]


# -- operators -----------------------------------------------------------------------------------------------
def test_operators_compute_a_response_and_the_event_keeps_its_token() -> None:
    options = {
        "request": "{n: a}",
        "where": "a",
        "set": {"r.n": "n", "both": "[n, $event.a]"},
        "meta": {"m": "$meta.k"},
    }
    with PipelineTest(op("branch", operators=[{"map": "{n: n * 2}"}, {"where": "n != 4"}], **options)) as test:
        test.feed(Event({"a": 1}, {"k": "x"}, 0), Event({"a": 2}, id=1), Event({"b": 1}, id=2), Event({"a": "x"}, id=3))
        assert test.outputs() == [{"a": 1, "r": {"n": 2}, "both": [2, 1]}, {"a": 2}, {"b": 1}]
        assert test.output_events()[0].meta == {"k": "x", "m": "x"}
        (failed,) = test.output_events("err")
        assert failed.value == {"a": "x"}
        assert "RejectError: branch: reject: operators.0: ExpressionError: the left side of *" in failed.meta["error"]
        assert sorted(test.settled) == [("ok", number) for number in range(4)]


def test_the_outcome_of_the_event_is_that_of_the_sink() -> None:
    with PipelineTest(op("branch", operators=["passthrough"], set={"r": "@"})) as test:
        test.answers(lambda event: "retry" if event.value["n"] == 1 else "reject", "out")
        test.feed({"n": 1}, {"n": 2})
        assert sorted(test.settled) == [("reject", 1), ("retry", 0)]


def test_batches_within_a_branch() -> None:
    operators = [{"batch": {"count": 2, "timeout": "1s"}}, {"map": "[].{n: n * 10}"}, "unbatch"]
    with PipelineTest(op("branch", operators=operators, set={"r": "n"})) as test:
        test.feed({"n": 1}, {"n": 2}, {"n": 3})
        assert test.outputs() == [{"n": 1, "r": 10}, {"n": 2, "r": 20}]
        test.advance(1)
        assert test.outputs()[2:] == [{"n": 3, "r": 30}]
    with PipelineTest(op("branch", operators=operators[:2], set={"r": "n"})) as test:
        test.feed({"n": 1}, {"n": 2})
        for each in test.output_events("err"):
            assert "a response for 2 requests: put unbatch after batch" in each.meta["error"]
        assert len(test.output_events("err")) == 2


def test_several_responses_are_an_error() -> None:
    with PipelineTest(op("branch", operators=[{"split": "list"}], set={"r": "@"})) as test:
        test.feed({"list": [1, 2]}, {"list": [1]}, {"list": []})
        assert test.outputs() == [{"list": [1], "r": 1}, {"list": []}]
        assert "2 responses for one request" in test.output_events("err")[0].meta["error"]


def test_a_response_that_does_not_come_in_time() -> None:
    slow = {"delay": "10s"}
    with PipelineTest(op("branch", operators=[slow], set={"r": "@"}, timeout="2s", failures="err")) as test:
        test.feed({"n": 1})
        test.advance(1.9)
        assert not test.output_events("err")
        test.advance(0.2)
        (failed,) = test.output_events("err")
        assert failed.meta["error"] == "BranchFailedError: branch: retry: no response within 2 s"
        test.advance(20)  # the late response is ignored
        assert (test.outputs(), test.settled) == ([], [("ok", 0)])
    with PipelineTest(op("branch", operators=[slow], set={"r": "@"}, timeout="2s")) as test:
        test.feed({"n": 1})
        test.advance(2.1)
        assert (test.output_events("err"), test.settled) == ([], [("retry", 0)])


def test_a_drain_waits_for_responses() -> None:
    with PipelineTest(op("branch", operators=[{"delay": "3s"}], set={"r": "n"})) as test:
        test.feed({"n": 1})
        report = test.drain()
        assert report.complete
        assert test.outputs() == [{"n": 1, "r": 1}]


# -- requests ------------------------------------------------------------------------------------------------
def test_responses_of_a_server_are_stored_in_order() -> None:
    async def scenario() -> None:
        answers = Answers()
        options = {"set": {"answer": "path"}, "meta": {"status": "$meta.status"}}
        async with peer(answers.answer) as url, flow_of(branch(url, {"concurrency": 8}, **options)) as kit:
            kit.feed.put(*({"n": number} for number in range(50)))
            await kit.finished()
            assert kit.out.values == [{"n": number, "answer": str(number)} for number in range(50)]
            assert {each.meta["status"] for each in kit.out.events} == {200}
            assert set(kit.feed.statuses.values()) == {"ok"}

    run(scenario)


def test_statuses_decide_about_events() -> None:
    async def scenario() -> None:
        answers = Answers(lambda name: int(name))
        async with peer(answers.answer) as url, flow_of(branch(url)) as kit:
            kit.feed.put({"n": 404}, {"n": 200}, {"n": 400})
            assert await settled(kit, 3) == ["reject", "ok", "reject"]
            assert "branch: reject: http_client: 404" in kit.feed.outcomes[0][0][1]
        async with peer(answers.answer) as url, flow_of(branch(url, failures="err"), ports=["err"]) as kit:
            kit.feed.put({"n": 404}, {"n": 500})
            assert await settled(kit, 2) == ["ok", "ok"]
            assert kit.sinks["err"].values == [{"n": 404}, {"n": 500}]
            errors = [each.meta["error"] for each in kit.sinks["err"].events]
            assert errors[0].startswith("RejectError: branch: reject: ")
            assert errors[1].startswith("BranchFailedError: branch: retry: ")
        async with peer(answers.answer) as url, flow_of(branch(url)) as kit:
            kit.feed.put({"n": 500})
            assert await settled(kit, 1) == ["retry"]

    run(scenario)


def test_a_retry_within_the_branch() -> None:
    async def scenario() -> None:
        answers = Answers(lambda name: 200 if answers.seen[name] > 2 else 500)
        retry = {"retry": {"attempts": 5, "first": "10ms", "most": "10ms"}}
        async with peer(answers.answer) as url, flow_of(branch(url, operators=[retry])) as kit:
            kit.feed.put({"n": 1})
            assert await settled(kit, 1) == ["ok"]
            assert kit.out.values == [{"n": 1, "answer": {"path": "1"}}]
            assert answers.seen["1"] == 3

    run(scenario)


def test_events_wait_while_the_server_is_down() -> None:
    async def scenario() -> None:
        port = free_port()
        async with flow_of(branch(f"http://127.0.0.1:{port}")) as kit:
            kit.feed.put({"n": 1})
            await until(lambda: "outage:p.0" in kit.running.graph.sources["in"].breaker)
            (reason,) = [each for each in kit.running.reasons()["in"] if each.reason == "outage:p.0"]
            assert "http_client" in reason.detail
            async with peer(Answers().answer, port):
                kit.feed.put({"n": 2})
                assert await settled(kit, 2) == ["ok", "ok"]
                assert [each["n"] for each in kit.out.values] == [1, 2]
                assert "outage:p.0" not in kit.running.graph.sources["in"].breaker

    run(scenario)


def test_an_outage_is_not_a_timeout() -> None:
    async def scenario() -> None:
        port, timeout = free_port(), 2.0
        answers = Answers()
        async with flow_of(branch(f"http://127.0.0.1:{port}", {"concurrency": 1}, timeout=f"{timeout}s")) as kit:
            async with peer(answers.answer, port):
                kit.feed.put({"n": 0})
                await settled(kit, 1)
                answers.open.clear()
                kit.feed.put(*({"n": number} for number in range(1, 200)))  # more than max_in_flight
                await until(lambda: answers.seen.total() == 2)
            await until(lambda: "outage:p.0" in kit.running.graph.sources["in"].breaker)
            began = time.monotonic()
            await until(lambda: time.monotonic() > began + timeout)
            answers.open.set()
            async with peer(answers.answer, port):
                assert (await settled(kit, 200)).count("ok") >= 190  # interrupted requests are retried
            assert "timeouts" not in kit.counts()

    run(scenario)


def test_events_fail_while_the_server_is_down() -> None:
    async def scenario() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        async with flow_of(branch(url, outage="fail", failures="err"), ports=["err"]) as kit:
            kit.feed.put({"n": 1})
            assert await settled(kit, 1) == ["ok"]
            kit.feed.put({"n": 2})
            assert await settled(kit, 2) == ["ok", "ok"]
            assert all("no request can be sent: " in each.meta["error"] for each in kit.sinks["err"].events)

    run(scenario)


def test_the_example_runs(tmp_path: Path) -> None:
    orders = [{"id": number, "customer_id": customer} for number, customer in enumerate((7, 8, 7, 500))]

    async def answer(request: web.Request) -> web.StreamResponse:
        customer = int(request.path.removeprefix("/customers/"))
        if customer == 7:
            return web.json_response({"name": "Ann", "tier": "gold", "card": "secret"})
        return web.Response(status=404 if customer == 8 else 500)

    async def scenario() -> None:
        async with peer(answer) as url:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidelog.cli", "flow", "run", str(EXAMPLE), "--listen", "none", cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT), "CRM": url}, stdin=-1, stdout=-1, stderr=-1,
            )  # fmt: skip
            out, errors = await process.communicate("".join(f"{json.dumps(each)}\n" for each in orders).encode())
            assert process.returncode == 0, errors
        customer = {"name": "Ann", "tier": "gold"}
        assert [json.loads(each) for each in out.splitlines()] == [
            {**orders[0], "customer": customer}, {**orders[2], "customer": customer},
        ]  # fmt: skip
        failed = [json.loads(each) for each in (tmp_path / "failed.jsonl").read_text().splitlines()]
        assert [each["id"] for each in failed] == [1, 3]
        assert "branch: reject: http_client: 404" in failed[0]["error"]
        assert "branch: retry: " in failed[1]["error"]

    run(scenario)


# -- the cache -----------------------------------------------------------------------------------------------
def test_equal_requests_have_one_response() -> None:
    async def scenario() -> None:
        answers = Answers()
        options = {"cache": {"ttl": "1h"}, "meta": {"status": "$meta.status"}}
        async with peer(answers.answer) as url, flow_of(branch(url, **options)) as kit:
            answers.open.clear()
            kit.feed.put({"n": 1, "x": 1}, {"n": 1, "x": 2}, {"n": 2})
            await until(lambda: answers.seen and kit.counts().get("cache_shared"))
            answers.open.set()
            await settled(kit, 3)
            kit.feed.put({"n": 1, "x": 3})
            await settled(kit, 4)
            assert answers.seen == {"1": 1, "2": 1}
            assert [each["answer"]["path"] for each in kit.out.values] == ["1", "1", "2", "1"]
            assert [each.meta["status"] for each in kit.out.events] == [200] * 4
            assert len({id(each["answer"]) for each in kit.out.values}) == 4
            assert (kit.counts()["cache_shared"], kit.counts()["cache_hits"], kit.counts()["requests"]) == (1, 1, 2)

    run(scenario)


def test_failures_are_not_stored() -> None:
    async def scenario() -> None:
        answers = Answers(lambda name: 404 if answers.seen[name] == 1 else 200)
        async with peer(answers.answer) as url, flow_of(branch(url, cache={})) as kit:
            for count, wanted in ((1, "reject"), (2, "ok"), (3, "ok")):
                kit.feed.put({"n": 1})
                assert (await settled(kit, count))[-1] == wanted
            assert answers.seen["1"] == 2

    run(scenario)


def test_the_age_of_responses_is_limited() -> None:
    cache = {"ttl": "1m", "key": "n"}
    operators = [{"map": "{at: now()}"}]
    with PipelineTest(op("branch", operators=operators, set={"at": "at"}, cache=cache)) as test:
        for _ in range(5):
            test.feed({"n": 1})
            test.advance(25)
        first, *others = (each["at"] for each in test.outputs())
    assert [each - first for each in others] == [0, 0, 75, 75]


def test_the_memory_is_limited() -> None:
    cache = MemoryCache(3, 4 * OVERHEAD, 60.0, lambda: 0.0)
    for key in "abc":
        cache.put(key, b"x")
    assert cache.get("a") == b"x"
    cache.put("d", b"x")
    assert ([cache.get(each) for each in "abcd"], len(cache)) == ([b"x", None, b"x", b"x"], 3)
    cache.put("e", b"x" * 3 * OVERHEAD)
    assert (cache.get("e"), len(cache)) == (None, 3)
    cache.put("f", b"x" * OVERHEAD)
    assert cache.size <= 4 * OVERHEAD
    assert cache.get("f") is not None
    cache.put("f", b"")
    assert cache.size == sum(
        len(each) + len(cache.get(each) or b"") + OVERHEAD for each in "acdf" if cache.get(each) is not None
    )


def test_flows_share_responses_on_a_server(tidelog_server: Server) -> None:
    async def scenario() -> None:
        answers = Answers()
        cache = {"store": "redis", "url": tidelog_server.url, "name": "shared", "ttl": "1h"}
        client = redis.Redis.from_url(tidelog_server.url)
        key = 'tidelog:flows:branch:shared:{"n":2}'
        async with peer(answers.answer) as url:
            for _ in range(2):
                async with flow_of(branch(url, cache=cache)) as kit:
                    kit.feed.put({"n": 1}, {"n": 2})
                    await settled(kit, 2)
                    assert [each["answer"]["path"] for each in kit.out.values] == ["1", "2"]
                    assert not kit.counts().get("cache_errors")
                    await until(lambda: client.exists(key))
            assert answers.seen == {"1": 1, "2": 1}
            assert 0 < client.pttl(key) <= 3_600_000
        client.close()

    run(scenario)


def test_without_its_server_the_cache_is_empty() -> None:
    async def scenario() -> None:
        answers = Answers()
        cache = {"store": "redis", "url": f"redis://127.0.0.1:{free_port()}"}
        async with peer(answers.answer) as url, flow_of(branch(url, cache=cache)) as kit:
            kit.feed.put({"n": 1})
            await settled(kit, 1)
            kit.feed.put({"n": 1})
            assert await settled(kit, 2) == ["ok", "ok"]
            assert answers.seen["1"] == 2
            assert kit.counts()["cache_errors"] == 1

    run(scenario)


# -- check ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"operators": []}, "neither operators nor http_client"),
        ({"set": {}}, "set is empty"),
        ({"operators": [{"mapp": "a"}]}, "operators[0]: there is no operator of type 'mapp'; did you mean 'map'?"),
        ({"operators": [{"map": "a +"}]}, "operators[0]: value 'a +': "),
        ({"operators": [5]}, "operators: 5 is no operator"),
        ({"operators": [{"route": [{"where": "a", "port": "x"}]}]}, "x"),
        ({"http_client": {"url": "ftp://x"}}, "http_client: "),
        ({"http_client": {"url": "http://x", "methd": "GET"}}, "unknown option 'methd'; did you mean 'method'?"),
        ({"set": {"a": "$evnt"}}, "there is no variable $evnt; known are $event, $meta"),
        ({"cache": {"url": "redis://x"}}, "url and name are for store: redis"),
        ({"cache": {"key": "a +"}}, "cache.key 'a +'"),
        ({"failures": "ignore"}, "failures"),
    ],
)
def test_check_reports_what_is_wrong(options: dict[str, Any], said: str) -> None:
    problems = Problems()
    given = {"operators": ["passthrough"], "set": {"a": "@"}, **options}
    assert operator_spec(Op("branch", given), "p[0]", problems) is None
    text = "; ".join(f"{path} {text}" for path, text in problems.found)
    assert said in text


def test_a_server_is_required_if_anything_within_needs_it() -> None:
    for options, wanted in (
        ({"cache": {"store": "redis"}}, True), ({"cache": {"store": "redis", "url": "redis://x"}}, False),
        ({"operators": [{"dedup": "a"}]}, True), ({}, False),
    ):  # fmt: skip
        given = {"operators": ["passthrough"], "set": {"a": "@"}, **options}
        made = operator_spec(Op("branch", given), "p[0]", Problems())
        assert made is not None
        assert made.needs_server is wanted


@pytest.mark.parametrize(
    "given",
    [
        {"operators": [{"python": "os:system"}]},
        {"operators": [{"branch": {"operators": [{"enrich": {}}]}}]},
        {"http_client": {"url": "https://x", "tls": {"ca": "/etc/passwd"}}},
        {"cache": {"url": "unix:///tmp/x"}},
    ],
)
def test_what_is_refused_over_http_is_refused_within_a_branch(given: dict[str, Any]) -> None:
    assert "not permitted in flows from HTTP" in restrictions.operator("branch", given)
    assert not restrictions.operator(
        "branch", {"http_client": {"url": "https://x"}, "operators": [{"map": "a"}, "split"]}
    )
