"""Sliding and session windows: settlement, partial results, limits, drains, steps, restarts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.opskit import flow_of, passed
from tests.tidelog.flows.test_stream_kill import wait
from tests.tidelog.flows.test_window import Clock, at, found, results
from tidelog import Client, NoGroupError
from tidelog.flows import Event, FlowFileError, op
from tidelog.flows.files import read_files
from tidelog.flows.operators.window import SLICE
from tidelog.flows.testing import FlowTest, PipelineTest
from tidelog.testing import Server, running_server

EXAMPLES = Path(__file__).parents[3] / "examples" / "flows"
SLIDING: dict[str, Any] = {"time": "10s", "slide": "5s"}
SESSIONS: dict[str, Any] = {"gap": "10s"}
KINDS = pytest.mark.parametrize("kind", [SLIDING, SESSIONS])


def by_time(kind: dict[str, Any], **options: Any) -> Any:
    return op("window", **{"at": "at", "aggregates": {"all": {"sum": "v"}}} | kind | options)


def seen(test: FlowTest) -> list[tuple[Any, ...]]:
    return [(each["start"], each["end"], each["aggregates"]["all"], each["partial"]) for each in test.outputs()]


# -- sliding ---------------------------------------------------------------------------------------------------
def test_sliding_windows() -> None:
    with PipelineTest(by_time(SLIDING)) as test:
        test.feed(at(6, v=1), at(12, v=2), at(26, v=4))
        assert seen(test) == [(0, 10, 1, True), (5, 15, 3, False), (10, 20, 2, False)]
        assert [each.meta["window"] for each in test.output_events()] == [{"count": n} for n in (1, 2, 1)]
        assert test.settled == [("ok", 0), ("ok", 1)]
        test.drain()
        assert seen(test)[3:] == [(20, 30, 4, True), (25, 35, 4, True)]


def test_an_event_is_settled_with_the_worst_outcome_of_its_windows() -> None:
    with PipelineTest(by_time(SLIDING)) as test:
        test.answers(lambda _: None)
        test.feed(at(6, v=1), at(12, v=2), at(30, v=4))
        first, second, third = test.output_events()
        test.settle(second, "reject")
        test.settle(third)
        assert test.settled == [("reject", 1)]
        test.settle(first)
        assert sorted(test.settled) == [("reject", 0), ("reject", 1)]


def test_an_event_is_late_if_all_of_its_windows_have_ended() -> None:
    with PipelineTest(by_time(SLIDING)) as test:
        test.feed(at(6, v=1), at(16, v=2), at(9, v=4), at(11, v=8), at(31, v=16))
        assert seen(test) == [(0, 10, 1, True), (5, 15, 1, False), (10, 20, 10, False), (15, 25, 2, False)]
        assert test.outputs("late") == [at(9, v=4)]  # and not the one at 11, which only one of its windows misses


def test_results_of_sliding_windows_share_no_values() -> None:
    kind = {**SLIDING, "aggregates": {"all": {"collect": "@"}}}
    with PipelineTest(by_time(kind), lambda value: value["aggregates"]["all"][0].update(v=0) or value) as test:
        test.feed(at(6, v=1), at(30, v=1))
        first, second = test.outputs()
        assert first["aggregates"]["all"][0] is not second["aggregates"]["all"][0]


def test_a_clock_that_is_set_back_loses_no_event() -> None:
    async def body() -> None:
        clock = Clock(1003)
        one = op("window", aggregates={"all": "count"}, **SLIDING)
        async with flow_of(one, clock=clock, ports=["late"]) as kit:
            for number, moment in enumerate((1003, 1033, 903)):
                clock.seconds = moment
                kit.feed.put(1)
                await kit.until(lambda number=number: kit.counts().get("in", 0) == number + 1)  # type: ignore[misc]
            await kit.finished()
            assert sum(found(kit)) == 6  # each event in two windows
            assert kit.sinks["late"].values == []

    asyncio.run(body())


def test_a_sliding_window_by_the_clock_ends_with_it() -> None:
    with PipelineTest(op("window", aggregates={"all": "count"}, **SLIDING)) as test:
        test.feed(1)
        test.advance(11)
        assert [each["aggregates"]["all"] for each in test.outputs()] == [1, 1]
        assert test.settled == [("ok", 0)]


def test_many_ends_are_work_in_steps() -> None:
    """A drain emits 50,000 results, in steps between which other tasks run."""

    async def body() -> None:
        one = op("window", time="500s", slide="1s", at="at", key="k", aggregates={"all": "count"})
        async with flow_of(one) as kit:
            operator: Any = kit.operator()
            kit.feed.put(*(at(1000, k=key) for key in range(100)))
            await kit.until(lambda: operator.kept() == 100)
            kit.feed.end()
            await kit.until(lambda: operator.busy() and kit.out.values)
            assert len(kit.out.values) < 50_000
            await kit.finished()
            assert sum(found(kit)) == len(kit.out.values) == 50_000
            assert set(kit.feed.statuses.values()) == {"ok"}
            assert kit.operator().kept() == 0

    assert SLICE < 50_000
    asyncio.run(body())


# -- sessions --------------------------------------------------------------------------------------------------
def test_sessions() -> None:
    with PipelineTest(by_time(SESSIONS)) as test:
        test.feed(at(1, v=1), at(10.5, v=2), at(20.5, v=4), at(40, v=8))
        assert seen(test) == [(1, 20.5, 3, False), (20.5, 30.5, 4, False)]
        assert test.settled == [("ok", 0), ("ok", 1), ("ok", 2)]


def test_an_event_merges_two_sessions() -> None:
    with PipelineTest(by_time({**SESSIONS, "lateness": "30s", "key": "k"})) as test:
        test.feed(at(1, v=1, k="a"), at(17, v=2, k="a"), at(9, v=4, k="b"), at(9, v=8, k="a"), at(70, v=0, k="a"))
        assert [(each["key"], *rest) for each, rest in zip(test.outputs(), seen(test), strict=True)] == [
            ("b", 9, 19, 4, False), ("a", 1, 27, 11, False),
        ]  # fmt: skip
        assert sorted(test.settled) == [("ok", number) for number in range(4)]


def test_a_session_by_the_clock_ends_after_its_gap() -> None:
    with PipelineTest(op("window", aggregates={"all": "count"}, **SESSIONS)) as test:
        for _ in range(3):
            test.feed(1)
            test.advance(9)
        assert test.outputs() == []
        test.advance(1)
        (only,) = test.outputs()
        assert (only["aggregates"]["all"], only["end"] - only["start"], only["partial"]) == (3, 28, False)


def test_the_rest_of_a_session_that_ended_early_is_partial() -> None:
    with PipelineTest(by_time({**SESSIONS, "key": "k", "max_open": 1, "idle": "1m"})) as test:
        test.feed(at(1, v=1, k="a"), at(2, v=2, k="b"), at(3, v=4, k="a"))
        test.advance(60)
        assert seen(test) == [(1, 11, 1, True), (2, 12, 2, True), (3, 13, 4, True)]
        test.feed(at(60, v=8, k="a"))
        test.advance(60)
        assert seen(test)[3:] == [(60, 70, 8, False)]
        assert test.running.graph.operators["pipeline"][0].counts["overflowed"] == 2


# -- both ------------------------------------------------------------------------------------------------------
@KINDS
def test_windows_end_when_nothing_comes(kind: dict[str, Any]) -> None:
    with PipelineTest(by_time(kind, idle="1m", lateness="1h")) as test:
        test.feed(at(7, v=1))
        test.advance(59)
        assert test.outputs() == []
        test.advance(1)
        assert {each["aggregates"]["all"] for each in test.outputs()} == {1}
        assert test.settled == [("ok", 0)]


@KINDS
@pytest.mark.parametrize("flush", [True, False])
def test_a_drain_ends_windows_or_returns_their_events(kind: dict[str, Any], flush: bool) -> None:
    with PipelineTest(by_time(kind, flush_on_drain=flush)) as test:
        test.feed(at(11, v=1), at(12, v=2))
        before = len(test.outputs())
        assert test.drain(5).complete
        assert all(each["partial"] for each in test.outputs()[before:])
        assert (len(test.outputs()) > before) == flush
        assert sorted(test.settled) == [("ok" if flush else "retry", number) for number in range(2)]


@KINDS
def test_windows_larger_than_their_source_may_have_in_flight_are_released(kind: dict[str, Any]) -> None:
    async def body() -> None:
        async with flow_of(by_time(kind, lateness="1h"), max_unsettled=10) as kit:
            kit.feed.put(*(at(100 + number / 10, v=1) for number in range(25)))
            await kit.until(lambda: len(kit.feed.outcomes) == 20)
            await kit.finished()
            windows: dict[Any, int] = defaultdict(int)
            for _, start, end, got, partial in results(kit):
                windows[start if "time" in kind else 0] += got["all"]
                assert partial
                assert end > start
            assert windows == ({95: 25, 100: 25} if "time" in kind else {0: 25})

    asyncio.run(body())


@KINDS
def test_events_that_are_retried_open_their_windows_again(kind: dict[str, Any]) -> None:
    with PipelineTest(by_time(kind)) as test:
        test.feed(at(4, v=1), at(60, v=2))
        before = len(test.outputs())
        test.feed(Event(at(4, v=1), None, 0, attempt=2), Event(at(5, v=4), None, 9, attempt=1))
        assert len(test.outputs()) == before
        test.advance(1)
        again = seen(test)[before:]
        assert again == ([(-5, 5, 1, True), (0, 10, 1, True)] if "time" in kind else [(4, 14, 1, True)])
        assert test.outputs("late") == [at(5, v=4)]


@KINDS
def test_an_event_that_fails_opens_no_window(kind: dict[str, Any]) -> None:
    kit = asyncio.run(passed(by_time(kind), values=[at(1, v="x"), {"v": 1}], ports=["err"]))
    assert kit.out.values == []
    assert len(kit.sinks["err"].events) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slide": "1s"}, "either count, time or gap"),
        ({"count": 3, "slide": "1s"}, "slide requires time, and must be less than it"),
        ({"time": "5s", "slide": "5s"}, "slide requires time, and must be less than it"),
        ({"time": "1001s", "slide": "1s"}, "an event would belong to 1,001 windows, of at most 1,000: increase slide"),
        ({"time": "5s", "gap": "5s"}, "either count, time or gap"), ({"gap": 0}, "must be at least 1ms"),
        ({"count": 3, "at": "t"}, "at requires time or gap, and not count"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FlowFileError) as raised:
        asyncio.run(passed(op("window", aggregates={"n": "count"}, **options), values=[]))
    assert said in str(raised.value)


# -- examples, and a restart -------------------------------------------------------------------------------------
def test_the_example_of_sessions() -> None:
    with FlowTest(read_files([EXAMPLES / "sessions.yaml"], server="redis://localhost:6379").flows["visits"]) as test:
        views = [(0, "ann", "/"), (100, "bob", "/a"), (60, "ann", "/b"), (5000, "ann", "/c"), (30, "bob", "/late")]
        test.feed(*({"at": moment, "user": user, "page": page} for moment, user, page in views))
        assert [(each["key"], each["aggregates"]) for each in test.outputs("visits")] == [
            ("ann", {"pages": 2, "first": "/", "all": ["/", "/b"]}),
            ("bob", {"pages": 1, "first": "/a", "all": ["/a"]}),
        ]
        assert [each["page"] for each in test.outputs("late")] == ["/late"]


def test_the_example_of_sliding_windows() -> None:
    spec = read_files([EXAMPLES / "latencies.yaml"], server="redis://localhost:6379").flows["latencies"]
    with FlowTest(spec) as test:
        test.feed(*({"service": "shop", "took": took} for took in (10, 30, 20)))
        test.advance(70)
        assert len(test.outputs("out")) == 6
        latency = {"p50": 20.0, "p95": 30.0, "p99": 30.0}
        assert all(
            each["aggregates"] == {"requests": 3, "latency": latency, "deviation": 10.0} for each in test.outputs("out")
        )


FLOW = """
flows:
  main:
    connectors:
      in: {type: stream, key: events, codec: json, group: g, retry: 500ms}
      sliding: {type: stream, key: sliding, codec: json}
      sessions: {type: stream, key: sessions, codec: json}
    pipelines:
      a: [window: {time: 10s, slide: 5s, key: k, at: at, lateness: 2s, idle: 1s, aggregates: {ids: {collect: id}}}]
      b: [window: {gap: 3s, key: k, at: at, lateness: 2s, idle: 1s, aggregates: {ids: {collect: id}}}]
    connect: [in -> a -> sliding, in -> b -> sessions]
"""


@contextmanager
def program(server: Server, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "tidelog.cli", "flow", "run", str(file), "--url", server.url, "--listen", "none"]
    with subprocess.Popen(words) as started:
        try:
            yield started
        finally:
            started.kill()


def test_after_a_kill_no_event_misses_in_any_of_its_windows(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW)
    events = [(number, number // 2, "ab"[number % 2]) for number in range(80)]
    lines = [[json.dumps({"id": number, "at": moment, "k": key})] for number, moment, key in events]
    with running_server() as server, server.client() as client:
        client.tmappend("events", ["data"], lines[:50])
        with program(server, file) as one:
            wait(lambda: client.tlen("sliding") >= 6 and _pending(client) == 50)  # all are in an open session
            one.kill()
        client.tmappend("events", ["data"], lines[50:])
        with program(server, file) as one:
            wait(lambda: all(len(_ids(client, key)) == 80 for key in ("sliding", "sessions")) and not _pending(client))
            one.terminate()
            assert one.wait(15) == 0
        assert _ids(client, "sessions") == set(range(80))
        windows: dict[Any, set[int]] = defaultdict(set)
        for result in _results(client, "sliding"):
            windows[result["key"], result["start"]] |= set(result["aggregates"]["ids"])
    wanted: dict[Any, set[int]] = defaultdict(set)
    for number, moment, key in events:
        for start in (moment // 5 * 5 - 5, moment // 5 * 5):
            wanted[key, start].add(number)
    assert windows == wanted


def _pending(client: Client) -> int:
    try:
        return client.tpending("events", "g").count
    except NoGroupError:
        return 0


def _results(client: Client, key: str) -> list[dict[str, Any]]:
    return [json.loads(entry["data"]) for page in client.pages(key) for entry in page]


def _ids(client: Client, key: str) -> set[int]:
    return {each for one in _results(client, key) for each in one["aggregates"]["ids"]}
