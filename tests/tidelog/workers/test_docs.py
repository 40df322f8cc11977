"""docs/workers.md: its program declares what it says, its functions run, its tables name every option there is."""

from __future__ import annotations

import asyncio
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click import Option

from tests.tidelog import doctables
from tests.tidelog.workers.feedkit import MemoryActions, MemoryFeed
from tidelog import AsyncClient, Entry, StreamId
from tidelog.cli.app import app_commands
from tidelog.cli.dlq import dlq
from tidelog.cli.worker import worker
from tidelog.testing import Server
from tidelog.topics.deadletters import FIELDS, MESSAGE, TRACEBACK
from tidelog.workers import App, Event, Events
from tidelog.workers.declare.processor import BatchOptions, EachOptions
from tidelog.workers.execution.stats import Stats
from tidelog.workers.operate.metrics import NOT_EVENTS
from tidelog.workers.operate.testing import AppTest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "workers.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def rows(title: str) -> dict[str, str]:
    return doctables.rows(TEXT, title)


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """What the blocks make, one after another."""
    made: dict[str, Any] = {"__name__": "shop"}
    source = "\n".join(code for language, code in BLOCKS if language == "python")
    exec(compile(source, "shop.py", "exec", dont_inherit=True), made)
    return made


def test_what_it_declares(program: dict[str, Any]) -> None:
    app = program["app"]
    assert list(app.processors) == [
        "bill", "index", "totals", "audit", "charge", "thumbnail", "mail", "ledger", "metrics", "export", "labels",
    ]  # fmt: skip
    assert list(app.timers) == ["sweep", "nightly"]


async def _run_all(app: App, url: str) -> None:
    flat = [b"id", b"7", b"customer", b"ann", b"item", b"tea", b"price", b"2.5"]
    async with AsyncClient(url) as client:
        for declared in app.processors.values():
            event = Event(declared.topic, 3, Entry(StreamId(5), flat), MemoryActions(client=client), epoch=1)
            if declared.kind == "events":
                await declared.invoke_events(Events(declared.topic, 3, MemoryFeed([event])))
            else:
                await declared.invoke([event])
    for timer in app.timers.values():
        await timer.invoke(1_782_867_600.0)


def test_its_functions_run(
    program: dict[str, Any], tidelog_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_run_all(program["app"], tidelog_server.url))
    assert capsys.readouterr().out.splitlines() == [
        "ann owes 2.5 for tea", "1 orders, the first is 7", "partition 3: 2.5", "5.0 in partition 3, attempt 1: tea",
        "charge ann", "a picture of tea", "mail to ann", "ann: 2.5", "tea sold", "1 rows", "a label: TEA",
        "one of the workers sweeps", "the report of 2026-07-01",
    ]  # fmt: skip


def test_every_option_is_there() -> None:
    documented = rows("## All options of a processor")
    assert documented.keys() == {*EachOptions.__annotations__, *BatchOptions.__annotations__}
    assert rows("<!-- options: tidelog.workers:App -->").keys() == inspect.signature(App).parameters.keys()
    shown = {name.partition(" ")[0] for name in rows("<!-- options: tidelog.cli.worker:worker -->")}
    assert shown == {each.opts[-1] for each in worker.params if isinstance(each, Option) and not each.hidden}
    timers = inspect.signature(App.timer).parameters.keys() | inspect.signature(App.cron).parameters.keys()
    assert rows("## Timers and crons").keys() == timers - {"self", "interval", "expression"}


def test_every_member_of_an_event_is_there() -> None:
    documented = {re.sub(r"^await |\(.*", "", name) for name in rows("| member of Event |")}
    assert documented == {name for name in dir(Event) if name[0] != "_"} - {"actions"}


def test_dead_letters() -> None:
    assert {name.encode() for name in rows("| field |")} == set(FIELDS)
    assert {name.split()[2] for name in rows("| command |")} == set(dlq.commands)
    assert f"first {MESSAGE} characters, the last {TRACEBACK:,} of" in TEXT


def test_its_test_passes(program: dict[str, Any]) -> None:
    program["test_orders_are_billed"]()


def test_every_event_that_is_counted_is_there() -> None:
    (row,) = re.findall(r"^\| `tidelog_worker_events_total` .*$", TEXT, re.MULTILINE)
    counted = {each.name for each in fields(Stats)} - set(NOT_EVENTS)
    assert set(re.findall(r"`([a-z]+)`", row)) == counted


def test_what_runs_is_looked_after_by_commands_that_there_are() -> None:
    assert set(re.findall(r"^tidelog app (\w+)", TEXT, re.MULTILINE)) == set(app_commands.commands)
    options = {each.name for each in worker.params}
    for name in ("metrics", "metrics-host", "log-level", "log-json", "workers", "processors"):
        assert f"--{name}" in TEXT
        assert name.replace("-", "_") in options


def test_every_part_of_a_test_is_there() -> None:
    documented = rows("| member of AppTest |").keys()
    named = {re.sub(r"^await |\(.*", "", name) for name in documented} - {"delay", "at"}
    public = {name for name in dir(AppTest) if name[0] != "_"} | {"workers", "server", "client"}
    assert {name for name in named if "=" not in name} == public


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / "docs" / path).exists(), target
        assert not anchor or anchor in headings((ROOT / "docs" / path).read_text() if path else TEXT), target


def headings(text: str) -> set[str]:
    """The anchors of a page."""
    titles = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles}
