"""What a flow holds while its sink hangs for an hour: bytes that Python has allocated, on a simulated clock.

The source has events without end. The first sink takes a batch and never answers. The second one has a timeout: what it
is given is given back after 10 s, and comes again, some hundred times in the hour.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any, Final, NamedTuple

from benchmarks.flows.through import VALUE
from tidelog.flows import Event, Flow
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.spec import FlowSpec
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

SECONDS: Final = 3600.0
LOOK: Final = 60.0  # s between two looks
TIMEOUT: Final = 10.0  # s


class Held(NamedTuple):
    """MB, the most in the first half hour and in the second; events that came again."""

    first: float
    second: float
    again: int

    @property
    def growth(self) -> float:
        """1 is flat."""
        return self.second / self.first


class Endless(Source):
    """Its events can be sent again."""

    def __init__(self) -> None:
        super().__init__()
        self._made = 0

    async def pull(self, limit: int) -> list[Event] | None:
        first, self._made = self._made, self._made + limit
        return [Event(dict(VALUE), None, number) for number in range(first, self._made)]


class Hangs(Sink):
    async def write(self, events: list[Event]) -> None:  # noqa: ARG002 - nothing becomes of them
        await asyncio.get_running_loop().create_future()


def flow(timeout: float | None) -> FlowSpec:
    made = Flow("benchmark")
    made.connector("in", Endless)
    made.connector("out", Hangs, **({} if timeout is None else {"timeout": timeout}))
    made.pipeline("p", lambda value: value)
    made.connect("in -> p -> out")
    return made.spec()


def measure(timeout: float | None = None) -> Held:
    """timeout: s that a write may take; None: for ever."""
    declared = flow(timeout)

    async def story(loop: VirtualLoop) -> Held:
        context = FlowContext("benchmark", queue=declared.queue, now_ns=loop.now_ns, random=loop.random)
        running = RunningFlow(declared, context)
        tracemalloc.start()
        await running.start()
        seen: list[float] = []
        try:
            while loop.time() < SECONDS:
                await asyncio.sleep(LOOK)
                gc.collect()
                seen.append(tracemalloc.get_traced_memory()[0] / 1e6)
        finally:
            tracemalloc.stop()
        counts: dict[str, Any] = running.graph.sources["in"].counts
        assert running.status != "failed", running.error
        assert not counts.get("ok"), counts
        await running.stop()
        half = len(seen) // 2
        return Held(max(seen[:half]), max(seen[half:]), counts.get("again", 0))

    return simulate(story)
