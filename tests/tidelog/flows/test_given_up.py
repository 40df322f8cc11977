"""Events that nobody will try again: a line with a count in the log, and dead letters where there is a server."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow
from tests.waiting import until
from tidelog.flows import Event, Flow, RejectError
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.declare import op
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate
from tidelog.testing import free_port


class Lossy(Numbers):
    """A source that can't give an event again."""

    remembers = False

    def __init__(self, count: int) -> None:
        super().__init__(count, owns_policy=False)


async def odd_ones_fail(events: list[Event]) -> list[Outcome]:
    return [{1: (REJECT, "no 1"), 3: (RETRY, "no 3")}.get(each.value % 4, OK) for each in events]


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if "given_up" in each.__dict__]


@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize("with_server", [True, False])
def test_a_source_that_cannot_give_again(settle: bool, with_server: bool, caplog: pytest.LogCaptureFixture) -> None:
    written: list[tuple[Event, str]] = []

    async def letters(source: str, given: Sequence[tuple[Event, str]]) -> bool:
        written.extend(given)
        return True

    async def story(loop: VirtualLoop) -> None:
        connectors = {"in": Lossy(40), "out": Taking(odd_ones_fail)}
        running = flow(loop, connectors, {}, "in out", letters=letters if with_server else None, settle=settle)
        await running.start()
        await running.finished()
        await asyncio.sleep(100)
        source, sink = running.graph.sources["in"], running.graph.sinks["out"]
        assert sink.counts["rejected"] + sink.counts["retried"] == 20
        assert source.counts.get("dead", 0) == (20 if settle else 0)
        assert running.unsettled().count == 0
        await running.stop()

    with caplog.at_level(logging.WARNING):
        simulate(story)
    told = lines(caplog)
    assert sum(each.__dict__["given_up"] for each in told) == 20
    assert len(told) == 2
    assert "no " in told[0].getMessage()
    assert "no 1 (" in told[1].getMessage()
    assert "no 3 (" in told[1].getMessage()
    assert told[0].__dict__["entity"] == ("in" if settle else "out")
    if with_server and settle:
        assert sorted(event.value for event, _ in written) == list(range(1, 40, 2))
        assert {reason for _, reason in written} == {"out: no 1", "out: no 3"}


def test_a_flood_is_a_line_each_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        async def all_fail(events: list[Event]) -> list[Outcome]:
            await asyncio.sleep(0.01)
            return [(REJECT, f"no {each.value}") for each in events]

        connectors = {"in": Lossy(100_000), "out": Taking(all_fail)}
        running = flow(loop, connectors, {}, "in out", options={"in": {"max_unsettled": 10}})
        await running.start()
        await asyncio.sleep(35)
        await running.stop()
        source = running.graph.sources["in"]
        assert source.counts["dead"] > 10_000

    with caplog.at_level(logging.WARNING):
        simulate(story)
    told = lines(caplog)
    assert 4 <= len(told) <= 6
    assert all(len(each.getMessage()) < 1500 for each in told)
    assert "other reasons (" in told[1].getMessage()


def test_the_server_of_the_letters_is_gone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said to be a dead letter that is none."""
    written: list[int] = []

    async def story(loop: VirtualLoop) -> None:
        async def letters(source: str, given: Sequence[tuple[Event, str]]) -> bool:
            if loop.time() < 50:
                raise ConnectionError("gone")
            written.extend(event.value for event, _ in given)
            return True

        connectors = {"in": Lossy(4), "out": Taking(odd_ones_fail)}
        running = flow(loop, connectors, {}, "in out", letters=letters)
        await running.start()
        await asyncio.sleep(20)
        assert not lines(caplog)
        unsettled = running.unsettled()
        assert unsettled.count >= 2
        assert unsettled.oldest is not None
        assert unsettled.oldest > 10
        await running.finished()
        await running.stop()

    with caplog.at_level(logging.WARNING):
        simulate(story)
    assert sorted(written) == [1, 3]
    assert sum(each.__dict__["given_up"] for each in lines(caplog)) == 2


def broken(value: Any) -> Any:
    raise RejectError("it is broken")


@pytest.mark.parametrize("kind", ["udp_server", "udp_server, settle off", "tcp_server", "metronome", "null", "metrics"])
def test_each_source_without_letters(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, _, off = kind.partition(", ")
    port = free_port()
    given: dict[str, dict[str, Any]] = {
        "udp_server": {"port": port}, "tcp_server": {"port": port}, "metronome": {"interval": 0.01},
        "null": {"count": 3}, "metrics": {"interval": 0.01},
    }  # fmt: skip

    async def main() -> None:
        made = Flow("shop", settle=not off, debug=True)
        made.connector("in", kind, **given[kind])
        made.connector("out", "null")
        made.pipeline("line", op("python", broken))
        made.connect("in -> line -> out")
        running = RunningFlow(made.spec(), FlowContext("shop", debug=True))
        await running.start()
        await until(lambda: running.status == "running")
        if kind == "udp_server":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                for data in (b"{bad", b'{"a": 1}'):
                    peer.sendto(data, ("127.0.0.1", port))
                    await asyncio.sleep(0.01)
        elif kind == "tcp_server":
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b'{bad\n{"a": 1}\n')
        await until(lambda: any("it is broken" in each for each in reasons(running, caplog)))
        if "server" in kind:
            await until(lambda: any("malformed" in each for each in reasons(running, caplog)))
        await running.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert lines(caplog)


def reasons(running: RunningFlow, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Said, or about to be."""
    since = running.context.given_up._since.values()
    return [each.getMessage() for each in lines(caplog)] + [reason for each in since for reason in each.reasons]
