"""The final actions of ``on_error``, at a source whose retries are the runtime's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow
from tidelog.flows import Event
from tidelog.flows.api.tokens import OK, RETRY, Token
from tidelog.flows.runtime.retries import RetryQueue
from tidelog.flows.runtime.sourcenode import HALTING
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate
from tidelog.transport.backoff import Backoff


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


def test_events_with_different_attempts_and_the_same_delay_are_all_retried() -> None:
    queue = RetryQueue(Backoff(first=1.0, most=1.0), lambda: 0.0)
    events = [Event({}, id="a"), Event({}, id="b"), Event({}, id="c")]
    for number, event in enumerate(events, 1):
        event.attempt = number
    batches = queue.add(events, lambda _: 0.0)
    assert {delay for delay, _ in batches} == {1.0}
    for _, some in batches:
        queue.ready(some)
    assert queue.waiting == 3
    assert sorted(each.id for each in queue.take(9)) == ["a", "b", "c"]


class Owning(Numbers):
    """A source with a policy of its own that halts. Its pull and its ``settled`` last for some time."""

    def __init__(self, pull: float, settle: float) -> None:
        super().__init__(1, ends=False, owns_policy=True)
        self.log: list[str] = []
        self._durations = (pull, settle)

    async def pull(self, limit: int) -> list[Event] | None:
        if self.given < self.count:
            return await super().pull(limit)
        await self._interrupted.wait()
        await asyncio.sleep(self._durations[0])  # a read was sent before
        self.log.append("pulled")
        return []

    async def settled(self, tokens: Sequence[Token]) -> None:
        self.context.escalate("halt", "it is broken")
        await asyncio.sleep(self._durations[1])
        self.log.append("settled")


@pytest.mark.parametrize(
    ("pull", "settle", "log", "seconds"),
    [
        (0.5, 1.0, ["pulled", "settled"], 1.0), (1.0, 0.5, ["settled", "pulled"], 1.0),
        (3600.0, 0.5, ["settled"], HALTING), (0.5, 3600.0, ["pulled"], HALTING),
    ],
)  # fmt: skip
def test_a_source_that_halts_returns_its_events_before_the_flow_ends(
    pull: float, settle: float, log: list[str], seconds: float
) -> None:
    async def story(loop: VirtualLoop) -> None:
        async def broken(events: list[Event]) -> Any:
            await asyncio.sleep(1.0)  # the source pulls meanwhile
            return [(RETRY, "broken")] * len(events)

        source = Owning(pull, settle)
        running = flow(loop, {"in": source, "out": Taking(broken)}, {}, "in out")
        await running.start()
        started = loop.time()
        await running.finished()
        assert running.status == "failed"
        assert "on_error: halt: it is broken" in str(running.error)
        assert source.log == log
        assert loop.time() - started == pytest.approx(1.0 + seconds, abs=0.1)
        await running.stop()

    simulate(story)
