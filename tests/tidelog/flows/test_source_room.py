"""Sources that can only say "I am done up to here": what a crash brings again is bounded by ``max_unsettled``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow, RetryError, op
from tidelog.testing import Server

COUNT = 600
WINDOW = 50

Made = Callable[..., Flow]


@pytest.fixture(params=["file", "wal"])
def made(request: pytest.FixtureRequest, tidelog_server: Server, tmp_path: Path) -> Made:
    def flow(sink: Any, *operators: Any, most: int = WINDOW) -> Flow:
        made = Flow("orders", server=tidelog_server.url)
        path = tmp_path / "in.jsonl"
        path.write_text("".join(f"{json.dumps({'n': number})}\n" for number in range(COUNT)))
        about = {"tail": True, "poll": "20ms"}
        window = {"max_unsettled": most, "on_error": {"retry": {"first": "10ms"}}}
        if request.param == "wal":
            made.connector("first", "file", path=str(path), **about)
            made.connector("in", "wal", **window)
            made.connect("first -> in")
        else:
            made.connector("in", "file", path=str(path), **about, **window)
        made.connector("out", sink)
        made.pipeline("p", *operators)
        made.connect("in -> p -> out")
        return made

    return flow


@in_loop
async def test_one_unsettled_event_keeps_the_order_in_an_outage(made: Made) -> None:
    written: list[int] = []
    refused: set[int] = set()

    async def sink(value: dict[str, int]) -> None:
        number = value["n"]
        if number % 50 < 2 and number not in refused:
            refused.add(number)
            raise RetryError("not now")
        written.append(number)

    async with running(made(sink, most=1)):
        await until(lambda: len(written) >= 120)
    assert written == [*range(len(written))]
    assert refused >= {0, 1, 50, 51, 100, 101}


@in_loop
async def test_what_lies_behind_an_event_that_is_not_settled_is_bounded(made: Made) -> None:
    seen: set[int] = set()
    refused = 0
    refuses = True

    async def sink(value: dict[str, int]) -> None:
        nonlocal refused
        if value["n"] == 3 and refuses:
            refused += 1
            raise RetryError("not now")
        seen.add(value["n"])

    async with running(made(sink)):
        await until(lambda: len(seen) == WINDOW + 2 and refused > 5)
        assert seen == set(range(WINDOW + 3)) - {3}
        refuses = False
        await until(lambda: len(seen) == COUNT)


@in_loop
async def test_a_batch_that_waits_for_what_is_not_read_goes_on_as_it_is(made: Made) -> None:
    """Few events are under way, and all in the batch: nothing is read, because they are the first ones."""
    seen: list[int] = []

    async def sink(values: list[dict[str, int]]) -> None:
        seen.extend(each["n"] for each in values)

    async with running(made(sink, lambda value: value if value["n"] % 10 == 0 else None, op("batch", count=500))):
        await until(lambda: len(seen) >= (COUNT - WINDOW) // 10)
        assert seen == list(range(0, 10 * len(seen), 10))
