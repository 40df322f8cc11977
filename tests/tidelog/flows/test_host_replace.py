"""What happens to other things while a flow is replaced: its old instances have ended, its new ones have not begun."""

from __future__ import annotations

import asyncio

import pytest

from tests.tidelog.flows.servicekit import LONG, hosted
from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.connector import Sink
from tidelog.flows.service.host import BusyError, DeployedFlow, FlowHost

FLOW = {"connectors": {"in": "null", "out": "null"}, "pipelines": {"p": []}, "connect": ["in -> p -> out"]}
OTHER = """
flows:
  other:
    connectors: {in: "null", out: "null"}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""


class Slow(Sink):
    """Takes its time to close."""

    gate: asyncio.Event

    async def write(self, events: list[Event]) -> None:
        pass

    async def close(self) -> None:
        await self.gate.wait()


async def being_replaced(host: FlowHost) -> asyncio.Task[object]:
    """The flow ``slow`` is being replaced, and waits until ``Slow.gate`` opens."""
    Slow.gate = asyncio.Event()

    async def forever() -> object:
        yield 1
        await asyncio.Event().wait()

    flow = Flow("slow")
    flow.connector("in", forever)
    flow.connector("out", Slow)
    flow.connect("in -> out")
    old = DeployedFlow(flow.spec(), "python")
    await host.start([old])
    await until(lambda: old.status == "running")
    replacing = asyncio.create_task(host.deploy("slow", FLOW, replace=True))
    await until(lambda: old.status == "drained")
    return replacing


def test_a_process_does_not_end_while_its_last_flow_is_replaced() -> None:
    async def main() -> None:
        async with hosted(OTHER) as host:
            replacing = await being_replaced(host)
            finished = asyncio.create_task(host.finished())
            await host.undeploy("other")
            await asyncio.sleep(0.05)
            assert not finished.done()
            Slow.gate.set()
            await asyncio.wait_for(replacing, LONG)
            await until(lambda: host.flows["slow"].status == "running")
            assert not finished.done()
            finished.cancel()
            await asyncio.gather(finished, return_exceptions=True)

    asyncio.run(main())


def test_a_process_that_drains_begins_no_flow_that_takes_the_place_of_another() -> None:
    async def main() -> None:
        async with hosted(OTHER) as host:
            replacing = await being_replaced(host)
            draining = asyncio.create_task(host.drain())
            await until(lambda: host.flows["other"].status == "drained")
            Slow.gate.set()
            await asyncio.wait_for(draining, LONG)
            with pytest.raises(BusyError, match="is stopping"):
                await asyncio.wait_for(replacing, LONG)
            assert {each.status for each in host.flows.values()} == {"drained"}

    asyncio.run(main())
