"""metrics: what the flows of a process count, as events that the codec influx can write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.netkit import feed, running, seen
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError
from tidelog.flows.codecs.base import codec


def test_figures_of_all_flows_of_a_process() -> None:
    async def scenario() -> None:
        shared: dict[str, Any] = {}
        watched, other = Flow("watched"), Flow("other")
        source = feed(watched)
        seen(watched)
        watched.connect("in -> seen")
        other.connector("figures", "metrics", interval="20ms", flows=["watched"])
        sink = seen(other)
        other.connect("figures -> seen")
        async with running(watched, shared) as one, running(other, shared):
            source.give(*(Event(each, None, each) for each in range(7)))
            await until(lambda: len(source.outcomes) == 7)
            await one.pause()
            sink.events.clear()
            await until(lambda: any(each["fields"].get("status") == "paused" for each in sink.values))
            await until(lambda: len(sink.values) >= 8)
        assert {each["tags"]["flow"] for each in sink.values} == {"watched"}
        fields: dict[str, dict[str, Any]] = {"flow": {}, "entity": {}, "channel": {}}
        for each in sink.values:
            kind = each["measurement"].removeprefix("tidelog_")
            fields[kind][each["tags"][kind]] = each["fields"]
        entities, channels = fields["entity"], fields["channel"]
        assert (entities["in"]["out"], entities["seen"]["ok"]) == (7, 7)
        assert channels == {"in.out -> seen": {"passed": 7, "dropped": 0, "waiting": 0}}
        flow = next(each for each in reversed(sink.values) if each["measurement"] == "tidelog_flow")
        assert flow["fields"] == {"status": "paused", "unsettled": 0, "oldest": 0.0, "reasons": "paused:api"}
        line = codec("influx").encode(flow, {})
        assert line.startswith(b"tidelog_flow,flow=watched ")
        assert shared["running"] == {}

    asyncio.run(scenario())


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(FlowFileError, match="interval"):
        Flow("x").connector("figures", "metrics", interval=0)
