"""For tests of connectors to message brokers: flows that read and write, their connections, a peer that is no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from functools import partial
from operator import contains
from typing import Any

import pytest

from tests.tidelog.flows.netkit import Feed, Seen, feed, seen
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError
from tidelog.flows.runtime.runningflow import RunningFlow

SOON: dict[str, Any] = {"reconnect": {"retry": {"first": "20ms", "most": "100ms"}}}


def reading(kind: str, **options: Any) -> tuple[Flow, Seen]:
    """A flow with a source of this type, and its sink."""
    flow = Flow("read")
    flow.connector("in", kind, **{**SOON, **options})
    out = seen(flow)
    flow.connect("in -> seen")
    return flow, out


def writing(kind: str, **options: Any) -> tuple[Flow, Feed]:
    """A flow with a sink of this type, and its source."""
    flow = Flow("write")
    flow.connector("out", kind, **{**SOON, **options})
    source = feed(flow)
    flow.connect("in -> out")
    return flow, source


def events(*values: Any) -> list[Event]:
    return [Event(value, {"number": str(number)}, number) for number, value in enumerate(values)]


async def resent(source: Feed, value: Any, out: Seen) -> None:
    """Send a value until it arrives: on a busy machine, a request can exceed its time limit."""
    for attempt in itertools.count():
        name = f"{value}/{attempt}"
        source.give(Event(value, None, name))
        await until(partial(contains, source.outcomes, name))
        if source.outcomes[name][0] == "ok":
            break
    await until(lambda: value in out.values)


async def connected(made: RunningFlow) -> None:
    """Wait until all connectors are connected."""
    nodes: list[Any] = [*made.graph.sources.values(), *made.graph.sinks.values()]
    await until(lambda: all(each.connection.connected for each in nodes))


async def error_of(made: RunningFlow) -> str:
    """Wait for an error of the connection of the only source."""
    (node,) = made.graph.sources.values()
    return str(await until(lambda: node.connection.error))


@contextlib.asynccontextmanager
async def garbage_server(garbage: bytes) -> AsyncIterator[int]:
    """The port of a server that sends this to each client, and closes the connection."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


def refused(kind: str, **options: Any) -> str:
    """The error of a flow whose source of this type has wrong options."""
    return _refused(kind, "peer -> null", options)


def refused_sink(kind: str, **options: Any) -> str:
    """The error of a flow whose sink of this type has wrong options."""
    return _refused(kind, "null -> peer", options)


def _refused(kind: str, chain: str, options: Mapping[str, Any]) -> str:
    flow = Flow("f")
    flow.connector("null", "null")

    def declare() -> None:
        flow.connector("peer", kind, **options)
        flow.connect(chain)
        flow.spec()

    with pytest.raises(FlowFileError) as caught:
        declare()
    return str(caught.value)
