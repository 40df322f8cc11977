"""Events a second from one source through two operators to one sink, all in this process.

The operators do as little as can be: what is measured is the runtime. The collector of circles works as in
``tidelog flow run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import uvloop

from tidelog.cli.collector import collect_less
from tidelog.flows import Event, Flow, op
from tidelog.flows.api.connector import Sink
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.connectors.templates import Template
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.spec import FlowSpec

T = TypeVar("T")

VALUE: Final = {"id": 7, "item": "tea", "price": 2.5, "city": "Catania", "paid": 1}
CONDITION: Final = "price > `2` && paid == `1`"
SELECT: Final = op("select", "{id: id, place: city, item: item}")
FIELDS: Final = {"total": "round(price * 1.22, 2)", "item": "upper(item)", "dear": "price > 2 ? 'yes' : 'no'"}


class Same(Operator):
    """An operator that somebody wrote: it takes the batch."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.value = _same(event.value)
        self.emit(events)


def _same(value: Any) -> Any:
    return value


class Named(Sink):
    """A sink that needs a name for each event, as ``file`` and ``kafka`` do, and writes nothing."""

    def __init__(self) -> None:
        self._template = Template("orders-{day}-{place|unknown}")

    async def write(self, events: list[Event]) -> None:
        for event in events:
            self._template.fill(event)


def flow(events: int, way: str = "functions", *, settle: bool = True) -> FlowSpec:
    """null -> two operators -> null: two functions; two classes; ``where`` or ``route``, and ``select``; ``where`` and
    ``map``.

    With ``templates``: null -> ``select`` -> a sink that fills a template for each event. With ``none``: null -> null.
    """
    made = Flow("benchmark", settle=settle)
    made.connector("in", "null", count=events, value=VALUE)
    if way == "templates":
        made.connector("out", Named)
    else:
        made.connector("out", "null")
    operators: dict[str, tuple[Any, ...]] = {
        "functions": (_same, _same),
        "classes": (Same, Same),
        "jmespath": (op("where", CONDITION), SELECT),
        "templates": (SELECT,),
        "map": (op("where", CONDITION), op("map", set=FIELDS)),
        "route": (op("route", cases=[{"where": CONDITION, "port": "out"}], **{"else": None}), SELECT),
    }
    if way == "none":
        made.connect("in -> out")
    else:
        made.pipeline("p", *operators[way])
        made.connect("in -> p -> out")
    return made.spec()


class Rate(NamedTuple):
    """Events a second of the clock, and of the time that the process had a core."""

    clock: float
    core: float


@contextlib.contextmanager
def paced() -> Iterator[None]:
    """The collector of circles as in tidelog's own programs."""
    before = gc.get_threshold()
    collect_less()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def rate(events: int, way: str = "functions", *, settle: bool = True) -> Rate:
    """Of one run."""
    declared = flow(events, way, settle=settle)

    async def whole() -> Rate:
        running = RunningFlow(declared, FlowContext("benchmark", queue=declared.queue))
        begun, used = time.perf_counter(), time.process_time()
        await running.start()
        await running.finished()
        found = Rate(events / (time.perf_counter() - begun), events / (time.process_time() - used))
        counts = running.graph.sources["in"].counts
        assert counts["out"] == events, counts
        assert not settle or counts["ok"] == events, counts
        await running.stop()
        return found

    return alone(whole)


def alone(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What an async function returns, run as ``tidelog flow run`` runs flows."""
    with paced(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
