"""Events a second from a stream through a function to another stream, at least once.

The flow is of this process, the server one of its own. Each event is appended before it is acknowledged.

The server is that of ``measured``: of the folder that TIDELOG_BENCH_ROOT names, else of the checkout.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks import measured
from benchmarks.flows.through import alone
from benchmarks.peers import handled
from benchmarks.workers.rates import cpu
from tidelog.flows import Event, Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.spec import FlowSpec
from tidelog.testing import Server, running_server

PATIENCE: Final = 300.0  # s
LOOK: Final = 0.005  # s
QUIET: Final = 0.3  # s in which the server uses less than IDLE
IDLE: Final = 0.03  # s
SERVER: Final = ("env", f"PYTHONPATH={measured.PYTHONPATH}", sys.executable, "-P", "-m", "_tidelog_server")
CODECS: Final = ("json", "plain")


class Rate(NamedTuple):
    """Events a second of the clock, and of the time that the flow's process and the server had a core."""

    clock: float
    core: float
    server: float
    compiled: bool  # the server


def total(order: dict[str, Any]) -> dict[str, Any]:
    """The function in between."""
    order["total"] = float(order["price"]) * 3
    return order


class Totals(Operator):
    """The same as a class."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            total(event.value)
        self.emit(events)


def rate(events: int, codec: str, operator: Callable[..., Any] = total) -> Rate:
    """Of one run."""
    with running_server(command=SERVER) as server:
        _fill(server, events, codec)
        used = _when_quiet(server)
        found = alone(lambda: _through(_flow(server, codec, operator), events))
        used = _when_quiet(server) - used
        with server.client() as client:
            assert client.tcount("out") == events
            assert client.tpending("orders", "g").count == 0
            compiled = client.redis.info("server")["tidelog_compiled"] == 1
    clock, core = found
    return Rate(clock, core, events / used, compiled)


def _when_quiet(server: Server) -> float:
    """CPU seconds that the server has used, once it has compressed in a thread what was appended."""
    used = cpu(server)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(QUIET)
        before, used = used, cpu(server)
        if used - before < IDLE:
            break
    return used


def _fill(server: Server, events: int, codec: str) -> None:
    with server.client() as client:
        for begin in range(0, events, 1000):
            orders = [handled.order(number) for number in range(begin, min(begin + 1000, events))]
            made = orders if codec == "plain" else [{"data": msgspec.json.encode(each)} for each in orders]
            client.tmappend("orders", tuple(made[0]), [tuple(each.values()) for each in made])


def _flow(server: Server, codec: str, operator: Callable[..., Any]) -> FlowSpec:
    flow = Flow("benchmark", server=server.url)
    flow.connector("in", "stream", key="orders", group="g", codec=codec)
    flow.connector("out", "stream", key="out", codec=codec)
    flow.pipeline("p", operator)
    flow.connect("in -> p -> out")
    return flow.spec()


async def _through(declared: FlowSpec, events: int) -> tuple[float, float]:
    """Until all is acknowledged."""
    running = RunningFlow(declared, FlowContext("benchmark", server=declared.server, queue=declared.queue))
    begun, used = time.perf_counter(), time.process_time()
    await running.start()
    source = running.graph.sources["in"]
    while source.counts.get("ok", 0) < events or source.unsettled:
        assert running.status != "failed", running.error
        assert time.perf_counter() < begun + PATIENCE, source.counts
        await asyncio.sleep(LOOK)
    seconds, core = time.perf_counter() - begun, time.process_time() - used
    await running.stop()
    return events / seconds, events / core
