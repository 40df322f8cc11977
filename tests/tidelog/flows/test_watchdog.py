"""A Python function that holds up the event loop: named in the log and in the API."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tests.tidelog.flows.servicekit import Client, flowing
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service import watchdog
from tidelog.flows.service.host import FlowHost
from tidelog.flows.service.watchdog import Watchdog

LONG = 1.0  # s that functions block


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BEAT", 0.05)
    monkeypatch.setattr(watchdog, "LIMIT", 0.3)


def slow(value: Any) -> Any:
    time.sleep(LONG)
    return value


def busy(value: Any) -> Any:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        sum(range(1000))
    return value


async def waits(value: Any) -> Any:
    _helper()
    return value


def _helper() -> None:
    time.sleep(LONG)


async def numbers() -> Any:
    yield 1
    time.sleep(LONG)  # noqa: ASYNC251 - that is what is tested
    yield 2


async def keep(value: Any) -> None:
    time.sleep(LONG)  # noqa: ASYNC251 - that is what is tested


async def taken(value: Any) -> None:
    pass


def passed(value: Any) -> Any:
    return value


async def some() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("source", "function", "sink", "name", "entity", "remedy"),
    [
        (some, slow, taken, "slow", "line.0", "in: thread"),
        (some, busy, taken, "busy", "line.0", "in: thread"),
        (some, waits, taken, "waits", "line.0", "asyncio.to_thread"),
        (some, passed, keep, "keep", "out", "asyncio.to_thread"),
        (numbers, passed, taken, "numbers", "", "asyncio.to_thread"),
    ],
)
def test_the_function_is_named(
    source: Any, function: Any, sink: Any, name: str, entity: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> dict[tuple[str, str, str], watchdog.BlockingStats]:
        flow = Flow("shop")
        flow.connector("in", source)
        flow.connector("out", sink)
        flow.pipeline("line", function)
        flow.connect("in -> line -> out")
        running = RunningFlow(flow.spec(), FlowContext("shop"))
        with Watchdog() as dog:
            await running.start()
            await running.finished()
            await until(lambda: any(each.times for each in dog.blocked.values()))
            await running.stop()
            return dog.blocked

    with caplog.at_level(logging.WARNING):
        blocked = asyncio.run(main())
    wanted = f"{__name__}:{name}"
    found = next(each for each in blocked.values() if each.call.function == wanted)
    assert found.call.entity == entity
    assert found.longest >= LONG - 0.1
    lines = [each.getMessage() for each in caplog.records if wanted in each.getMessage()]
    assert f"the function {wanted} has blocked the process for" in lines[0]
    assert remedy in lines[0]
    assert f"the function {wanted} blocked the process for" in lines[1]


def test_episodes_of_a_function_are_logged_once_in_a_while_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> watchdog.BlockingStats:
        flow = Flow("shop")
        flow.connector("in", "null", count=3, max_unsettled=1)
        flow.connector("out", "null")
        flow.pipeline("line", slow)
        flow.connect("in -> line -> out")
        running = RunningFlow(flow.spec(), FlowContext("shop"))
        with Watchdog() as dog:
            await running.start()
            await running.finished()
            key = ("shop", "line.0", f"{__name__}:slow")
            await until(lambda: key in dog.blocked and dog.blocked[key].times)
            await running.stop()
            return dog.blocked[key]

    with caplog.at_level(logging.WARNING):
        found = asyncio.run(main())
    assert found.seconds >= found.longest
    lines = [each for each in caplog.records if "has blocked the process" in each.getMessage()]
    assert len([each for each in lines if f"{__name__}:slow" in each.getMessage()]) == 1
    assert lines[0].__dict__["function"] == f"{__name__}:slow"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_waits_for_events_is_not_blocked(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    loop, begun, ended = new_loop(), threading.Event(), asyncio.Event()

    async def main() -> None:
        loop.call_later(0.1, begun.set)
        await ended.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    time.sleep(0.2)
    found = watchdog.blocking_call(sys._current_frames()[thread.ident or 0], "")
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    assert found is None


def test_the_api_says_it_afterwards() -> None:
    text = f"""
flows:
  main:
    connectors: {{in: {{type: "null", count: 1}}, out: "null", more: {{type: metronome, interval: 1h}}}}
    pipelines: {{line: [{{python: "{__name__}:slow"}}]}}
    connect: [in -> line -> out, more -> line]
"""

    async def test(ask: Client, host: FlowHost) -> None:
        with host.watchdog:
            await until(lambda: any(each.times for each in host.watchdog.blocked.values()))
            flow = (await ask("GET", "/v1/flows/main")).body
            assert [each["function"] for each in flow["blocked"]] == [f"{__name__}:slow"]
            assert flow["blocked"][0]["entity"] == "line.0"
            assert flow["blocked"][0]["longest_s"] >= LONG - 0.1
            metrics = (await ask("GET", "/metrics")).body
            assert "tidelog_flow_blocked_seconds_total{" in metrics

    flowing(test, text, wait=False)
