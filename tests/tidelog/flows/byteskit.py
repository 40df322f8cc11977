"""A flow in a test: a connector on one side, a list on the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow

DEADLINE = 20.0  # s


@contextlib.asynccontextmanager
async def running(flow: Flow, *, started: bool = True) -> AsyncIterator[RunningFlow]:
    one = RunningFlow(flow.spec(), FlowContext(flow.name, debug=True, dead_letters=None))
    await one.start()
    try:
        if started:
            await until(lambda: one.status in ("running", "paused"))
        yield one
        assert not (one.ended and one.error), one.error
        assert not one.context.lost
    finally:
        await one.stop()


class Reader:
    """A flow from a connector to a list. ``fail`` says of a value how often it is to be tried again."""

    def __init__(self, kind: str, /, **options: Any) -> None:
        self.events: list[Event] = []
        self.bad: list[Event] = []
        self.fail: dict[str, int] = {}

        async def keep(event: Event) -> None:
            if self.fail.get(str(event.value), 0) > 0:
                self.fail[str(event.value)] -= 1
                raise RuntimeError("not yet")
            self.events.append(event)

        async def keep_bad(event: Event) -> None:
            self.bad.append(event)

        self.flow = Flow("reader")
        if kind != "udp_server":  # which can't send an event again
            options["on_error"] = {"retry": {"first": 0.01}}
        self.flow.connector("in", kind, **options)
        self.flow.connector("out", keep)
        self.flow.connector("bad", keep_bad)
        self.flow.connect("in -> out", "in.err -> bad")

    @property
    def values(self) -> list[Any]:
        return [each.value for each in self.events]


async def write(values: list[Any], kind: str, /, **options: Any) -> RunningFlow:
    """Write values (or events) to a connector, to the end."""

    async def source() -> AsyncIterator[Any]:
        for each in values:
            yield each

    flow = Flow("writer")
    flow.connector("in", source)
    flow.connector("out", kind, **options)
    flow.connect("in -> out")
    async with running(flow, started=False) as one, asyncio.timeout(DEADLINE):
        await one.finished()
    return one
