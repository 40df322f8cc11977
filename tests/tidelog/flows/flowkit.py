"""Flows of connectors and operators that a test has made itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.flows import Event
from tidelog.flows.api.connector import Connector, Deferred, Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions, ReconnectOptions, ReconnectRetryOptions
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Token
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec, OperatorSpec, PipelineSpec
from tidelog.flows.testing.virtualloop import VirtualLoop
from tidelog.options.structs import Problems, read
from tidelog.options.units import Duration

SOON = ReconnectOptions(retry=ReconnectRetryOptions(first=Duration(0.1), jitter=0))


class Numbers(Source):
    """0, 1, ... as values and IDs; then it ends, or waits. ``heard``: (ID, status) of what was settled."""

    def __init__(self, count: int, *, ends: bool = True, owns_policy: bool = True) -> None:
        super().__init__()
        self.count = count
        self.ends = ends
        self.owns_policy = owns_policy
        self.given = 0
        self.pulls = 0
        self.heard: list[tuple[int, int]] = []

    async def pull(self, limit: int) -> list[Event] | None:
        self.pulls += 1
        numbers = range(self.given, min(self.given + limit, self.count))
        self.given += len(numbers)
        if not numbers:
            if self.ends:
                return None
            await self.wait(asyncio.get_running_loop().create_future())
        return [Event(each, None, each) for each in numbers]

    async def settled(self, tokens: Sequence[Token]) -> None:
        self.heard += [(each.key, each.status) for each in tokens]

    @property
    def acknowledged(self) -> set[int]:
        return {number for number, status in self.heard if status != RETRY}


class Taking(Sink):
    """Writes what ``write`` says: an async function of the events; None: all are ok."""

    def __init__(self, write: Callable[[list[Event]], Any] | None = None, concurrency: int = 1) -> None:
        self.acts = write
        self.concurrency = concurrency
        self.values: list[Any] = []
        self.calls: list[str] = []

    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome] | None:
        self.calls.append("write")
        outcomes: Deferred | Sequence[Outcome] | None = None if self.acts is None else await self.acts(events)
        self.values += [each.value for each in events]
        return outcomes

    async def flush(self) -> None:
        self.calls.append("flush")


async def hangs(events: list[Event]) -> None:
    await asyncio.get_running_loop().create_future()


def _connector(name: str, made: Connector, options: ConnectorOptions) -> ConnectorSpec:
    return ConnectorSpec(name, "x", lambda: made, options, isinstance(made, Source), isinstance(made, Sink))


def _operator(made: Operator) -> OperatorSpec:
    return OperatorSpec("x", lambda: made, made.ports(), made.guards)


def _options(given: Mapping[str, Any]) -> ConnectorOptions:
    problems = Problems()
    made = read(ConnectorOptions, given, "options", problems)
    assert made is not None, problems.found
    if "reconnect" not in given:
        made.reconnect = SOON
    return made


def flow(
    loop: VirtualLoop,
    connectors: Mapping[str, Connector],
    pipelines: Mapping[str, Sequence[Operator]],
    *links: str,
    options: dict[str, dict[str, Any]] | None = None,
    letters: Any = None,
    **spec: Any,
) -> RunningFlow:
    """links: ``"in p"``, ``"p.err out"``. options: of connectors, by name. Not started. In debug mode."""
    given = {name: _options((options or {}).get(name, {})) for name in connectors}
    made = []
    for each in links:
        left, right = each.split()
        name, _, port = left.partition(".")
        made.append(Edge(name, port or "out", right))
    declared = FlowSpec(
        "flow",
        {name: _connector(name, each, given[name]) for name, each in connectors.items()},
        {name: PipelineSpec(name, tuple(_operator(each) for each in line)) for name, line in pipelines.items()},
        tuple(made),
        debug=True,
        **spec,
    )  # fmt: skip
    context = FlowContext(
        "flow", debug=True, queue=declared.queue, now_ns=loop.now_ns, random=loop.random, dead_letters=letters
    )
    return RunningFlow(declared, context)
