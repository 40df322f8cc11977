"""The final actions of ``on_error``, at a source whose retries are the runtime's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow
from tidelog.flows import Event
from tidelog.flows.api.tokens import OK, RETRY
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate


@pytest.mark.parametrize("action", ["dead_letter", "skip", "pause", "halt"])
def test_a_final_action(action: str) -> None:
    letters: list[Any] = []
    broken = True

    async def write(_: str, pairs: Any) -> bool:
        letters.extend(event.value for event, _ in pairs)
        return True

    async def some(events: list[Event]) -> Any:
        return [(RETRY, "broken") if broken and each.value == 1 else OK for each in events]

    async def story(loop: VirtualLoop) -> None:
        nonlocal broken
        options = {"in": {"on_error": [{"retry": {"attempts": 2}}, action]}}
        source, sink = Numbers(3, ends=False, owns_policy=False), Taking(some)
        running = flow(loop, {"in": source, "out": sink}, {}, "in out", letters=write, options=options)
        await running.start()
        await asyncio.sleep(60)
        node = running.graph.sources["in"]
        assert node.counts["retry"] == 3
        assert letters == ([1] if action == "dead_letter" else [])
        assert running.status == {"pause": "running", "halt": "failed"}.get(action, "running")
        if action == "pause":
            assert [each.reason for each in node.reasons()] == ["paused:in"]
            broken = False
            await running.resume("in")
            await asyncio.sleep(1)
        if action != "halt":
            assert node.unsettled == 0
            assert node.counts.get("skipped", 0) == (action == "skip")
        await running.stop()

    simulate(story)
