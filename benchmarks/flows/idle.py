"""What flows cost that have nothing to do: their sources wait for what does not come."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import NamedTuple

import uvloop

from benchmarks.flows.through import flow
from tidelog.flows import Event
from tidelog.flows.api.connector import Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow


class Silent(Source):
    async def pull(self, limit: int) -> list[Event] | None:  # noqa: ARG002 - there are none
        await self.wait(asyncio.get_running_loop().create_future())
        return []


class Idle(NamedTuple):
    cores: float
    flows: int
    tasks: int


def measure(flows: int = 1000, seconds: float = 10.0) -> Idle:
    """Cores that so many flows of five entities take."""
    declared = flow(1)
    source = replace(declared.connectors["in"], make=Silent)
    declared = replace(declared, connectors={**declared.connectors, "in": source})

    async def whole() -> Idle:
        made = [RunningFlow(declared, FlowContext(f"idle.{number}")) for number in range(flows)]
        for each in made:
            await each.start()
        while any(each.status != "running" for each in made):  # noqa: ASYNC110 - soon
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        cores = (time.process_time() - used) / (time.monotonic() - began)
        found = Idle(cores, flows, len(asyncio.all_tasks()))
        for each in made:
            await each.stop()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(whole())
