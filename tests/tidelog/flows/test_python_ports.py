"""python: results that a function sends to ports with ``To``, in the loop, in threads and in processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.tidelog.flows import opfunctions
from tests.tidelog.flows.opskit import passed
from tidelog.flows import Event, Flow, FlowFileError, To, op, operator
from tidelog.flows.testing import PipelineTest, check_operator

VALUES = [1, 20, 3, 40]


@operator(ports=["large"])
def sized(value: int) -> Any:
    return To("large", value) if value > 10 else value


@operator(ports=["large"])
def sized_event(event: Event) -> Any:
    event.meta["seen"] = True
    return To("large", event) if event.value > 10 else To("out", event)


@operator(ports=["large"], concurrency=3)
async def sized_later(value: int) -> Any:
    await asyncio.sleep(0.01 / value)
    return To("large", value) if value > 10 else value


@operator(ports=["large"])
class Sized:
    def __call__(self, value: int) -> Any:
        return sized(value)


@pytest.mark.parametrize("call", [sized, sized_event, sized_later, Sized])
def test_a_result_is_sent_to_the_port_that_it_names(call: Any) -> None:
    with PipelineTest(call) as test:
        test.feed(*VALUES)
        test.advance(1)
        assert (test.outputs(), test.outputs("large")) == ([1, 3], [20, 40])
        assert sorted(test.settled) == [("ok", number) for number in range(4)]
        assert all(event.meta.get("seen") == (True if call is sized_event else None)
                   for event in test.output_events("large"))  # fmt: skip


@pytest.mark.parametrize("where", ["thread", "process"])
def test_elsewhere(where: str) -> None:
    call = op("python", **{"call": opfunctions.sized, "in": where})
    kit = asyncio.run(passed(call, values=VALUES, ports=["large"]))
    assert (kit.out.values, kit.sinks["large"].values) == ([1, 3], [20, 40])


def test_a_generator_sends_its_results_to_several_ports() -> None:
    @operator(ports=["letters", "digits"])
    def apart(text: str) -> Iterator[Any]:
        yield len(text)
        for each in text:
            yield To("digits" if each.isdigit() else "letters", each)

    @operator(ports=["letters", "digits"])
    async def apart_later(text: str) -> AsyncIterator[Any]:
        for each in apart(text):
            yield each

    for call in (apart, apart_later):
        with PipelineTest(call) as test:
            test.answers(lambda _: "reject", "digits")
            test.feed("a1b", "ab")
            test.advance(1)
            assert test.outputs() == [3, 2]
            assert test.outputs("letters") == ["a", "b", "a", "b"]
            assert test.outputs("digits") == ["1"]
            assert sorted(test.settled) == [("ok", 1), ("reject", 0)]


def test_results_share_no_containers() -> None:
    @operator(ports=["audit"])
    def both(order: dict[str, Any]) -> Iterator[Any]:
        yield To("audit", order)
        yield {**order, "checked": True}

    def change(order: dict[str, Any]) -> dict[str, Any]:
        order["items"].append("gift")
        return order

    with PipelineTest(both, change) as test:
        test.feed({"items": ["tea"]})
        assert test.outputs() == [{"items": ["tea", "gift"], "checked": True}]
        assert test.outputs("audit") == [{"items": ["tea"]}]


def test_a_port_that_is_not_declared_fails_the_event() -> None:
    @operator(ports="large")
    def wrong(value: int) -> Iterator[Any]:
        yield value
        if value > 10:
            yield To("larg", value)

    with PipelineTest(wrong) as test:
        test.feed(1, 20)
        assert test.outputs() == [1]
        (failed,) = test.output_events("err")
        assert failed.value == 20
        text = "it has the ports large: declare this one with @operator(ports=[...])"
        assert failed.meta["error"].endswith(text), failed.meta["error"]
    with PipelineTest(lambda value: To("large", value)) as test:
        test.feed(1)
        (failed,) = test.output_events("err")
        assert "it has no ports: declare this one" in failed.meta["error"]


def test_none_is_sent_if_a_port_is_named() -> None:
    @operator(ports=["empty"])
    def emptied(value: Any) -> Any:
        return To("empty", None) if value else None

    with PipelineTest(emptied) as test:
        test.feed(1, 0)
        assert test.outputs("empty") == [None]
        assert sorted(test.settled) == [("discard", 1), ("ok", 0)]


@pytest.mark.parametrize(
    ("names", "text"),
    [(["err"], "ports: the port can't be named 'err'"), (["a b"], "ports: 'a b' is not a valid name of a port")],
)
def test_ports_that_are_wrong(names: list[str], text: str) -> None:
    @operator(ports=names)
    def call(value: Any) -> Any:
        return value

    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("p", call)


def test_a_port_must_be_connected() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("out", "null")
    flow.pipeline("p", sized)
    flow.connect("in -> p -> out")
    with pytest.raises(FlowFileError, match=r"the port 'large' of python is not connected: connect p\.large"):
        flow.spec()


def test_conformance() -> None:
    check_operator(sized, VALUES)
    check_operator(sized_later, VALUES)
