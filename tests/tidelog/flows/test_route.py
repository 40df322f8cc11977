"""``route``, and ``else`` of ``where``: each event reaches the right ports, and its source gets one outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.opskit import passed
from tidelog.flows import Flow, FlowFileError, op
from tidelog.flows.declare import Op
from tidelog.flows.files import read_files, read_text
from tidelog.flows.testing import FlowTest, PipelineTest

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "routes.yaml"
LARGE = {"where": "n > `10`", "port": "large"}
EVEN = {"where": "even", "port": "even"}


def route(*cases: Any, **options: Any) -> Op:
    return op("route", cases=list(cases), **options)


def problems(*operators: Op, connect: str = "in -> p -> null") -> list[str]:
    """Return the errors of a flow with this pipeline."""
    flow = Flow("f")
    for name in ("in", "null", "other"):
        flow.connector(name, "null")

    def declare() -> None:
        flow.pipeline("p", *operators)
        flow.connect(*connect.split("; "))
        flow.spec()

    with pytest.raises(FlowFileError) as caught:
        declare()
    return [each for each in caught.value.problems if "the connector " not in each]


def test_the_first_case_that_is_true_decides() -> None:
    with PipelineTest(route(LARGE, EVEN)) as test:
        test.feed({"n": 20, "even": True}, {"n": 2, "even": True}, {"n": 3}, {"n": "x"}, {"n": 21}, 7)
        assert test.outputs("large") == [{"n": 20, "even": True}, {"n": 21}]
        assert test.outputs("even") == [{"n": 2, "even": True}]
        assert test.outputs() == [{"n": 3}, 7]
        (failed,) = test.output_events("err")
        assert failed.meta["error"].startswith("TypeError: ")
        assert sorted(test.settled) == [("ok", number) for number in range(6)]


def test_the_other_events_go_to_else_or_are_discarded() -> None:
    with PipelineTest(route(LARGE, **{"else": "small"})) as test:
        test.feed({"n": 20}, {"n": 3})
        assert (test.outputs("large"), test.outputs("small")) == ([{"n": 20}], [{"n": 3}])
        assert test.sinks == ["err", "large", "small"]
    with PipelineTest(route(LARGE, **{"else": None})) as test:
        test.feed({"n": 20}, {"n": 3})
        assert test.outputs("large") == [{"n": 20}]
        assert test.reasons() == {1: "route: no case is true"}
        assert sorted(test.settled) == [("discard", 1), ("ok", 0)]


def test_out_leads_to_the_next_operator() -> None:
    later = op("select", "{after: n}")
    with PipelineTest(route({"where": "n > `10`", "port": "out"}, **{"else": "small"}), later) as test:
        test.feed({"n": 20}, {"n": 3})
        assert test.outputs() == [{"after": 20}]
        assert test.outputs("small") == [{"n": 3}]


def test_all_sends_a_copy_to_each_case_and_one_to_each_port() -> None:
    def change(value: dict[str, Any]) -> dict[str, Any]:
        value["list"].append(1)
        return value

    twice = {"where": "n", "port": "large"}
    with PipelineTest(route(LARGE, EVEN, twice, {"port": "out"}, all=True), change) as test:
        test.feed({"n": 20, "even": True, "list": []}, {"n": 3, "list": []})
        assert test.outputs("large") == [{"n": 20, "even": True, "list": []}, {"n": 3, "list": []}]
        assert test.outputs("even") == [{"n": 20, "even": True, "list": []}]
        assert test.outputs() == [{"n": 20, "even": True, "list": [1]}, {"n": 3, "list": [1]}]
        assert sorted(test.settled) == [("ok", 0), ("ok", 1)]


def test_all_settles_the_event_when_the_last_copy_is_settled_with_the_worst_outcome() -> None:
    with PipelineTest(route(LARGE, EVEN, all=True)) as test:
        test.answers(lambda _: None, "even")
        test.feed({"n": 20, "even": True}, {"n": 20})
        assert test.settled == [("ok", 1)]
        (copy,) = test.output_events("even")
        test.settle(copy, "reject", "even")
        assert test.settled == [("ok", 1), ("reject", 0)]
        test.feed({"n": "x", "even": True})  # fails as a whole
        assert len(test.output_events("err")) == len(test.output_events("even")) == 1


def test_all_without_a_case_that_is_true() -> None:
    with PipelineTest(route(LARGE, all=True, **{"else": None})) as test:
        test.feed({"n": 1})
        assert test.settled == [("discard", 0)]
    with PipelineTest(route(LARGE, all=True, **{"else": "small"})) as test:
        test.feed({"n": 1})
        assert test.outputs("small") == [{"n": 1}]


def test_without_settlement() -> None:
    operator = route(LARGE, {"port": "out"}, all=True)
    kit = asyncio.run(passed(operator, values=[{"n": 20}, {"n": 1}], ports=["large"], settle=False))
    assert kit.sinks["large"].values == [{"n": 20}]
    assert kit.out.values == [{"n": 20}, {"n": 1}]


def test_where_with_a_port_for_the_others() -> None:
    with PipelineTest(op("where", expression="n > `10`", **{"else": "small"})) as test:
        test.feed({"n": 20}, {"n": 3}, {"n": "x"})
        assert (test.outputs(), test.outputs("small")) == ([{"n": 20}], [{"n": 3}])
        assert len(test.output_events("err")) == 1
        assert sorted(test.settled) == [("ok", 0), ("ok", 1), ("ok", 2)]


# -- the check of a flow -------------------------------------------------------------------------------------
def test_ports_that_are_not_connected_are_reported() -> None:
    end = "of route is not connected: connect p.{}, to null if its events are to be discarded"
    found = problems(route(LARGE, EVEN), connect="in -> p; p.even -> other")
    assert found == [f"f.pipelines.p[0]: the port {each!r} {end.format(each)}" for each in ("large", "out")]
    found = problems(op("where", expression="n", **{"else": "small"}), op("passthrough"), connect="in -> p -> other")
    assert found == [f"f.pipelines.p[0]: the port 'small' {end.format('small').replace('route', 'where')}"]
    found = problems(op("where", expression="n", **{"else": "a"}), op("passthrough"), connect="in -> p; p.a -> other")
    assert "p.out is not connected" in found[0]


def test_unknown_ports_are_reported() -> None:
    cases = route(LARGE, **{"else": "small"})
    found = problems(cases, connect="in -> p; p.large -> other; p.smal -> other; p.small -> null")
    assert found == ["f.connect: the pipeline 'p' has no port 'smal'; did you mean 'small'?"]
    found = problems(cases, connect="in -> p -> null; p.large -> other; p.small -> null")
    assert found == ["f.connect: route emits no events on p.out: connect its ports: large, small"]
    found = problems(cases, op("passthrough"), connect="in -> p -> null; p.large -> other; p.small -> null")
    text = "route must be the last operator: it emits events on large, small, and not on out"
    assert found == [f"f.pipelines.p[0]: {text}"]


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (
            route({"port": "a"}, LARGE),
            "no event reaches cases[1], because cases[0] is always true: put that one last, or set all: true",
        ),
        (route({"where": "`1`", "port": "a"}, LARGE), "no event reaches cases[1], because cases[0] is always true"),
        (
            route(LARGE, {"where": "(n>`10`)", "port": "b"}),
            "no event reaches cases[1], because cases[0] has the same condition: remove one, or set all: true",
        ),
        (
            route(LARGE, {"where": "`false`", "port": "b"}),
            "cases[1] is never true: remove it, or correct '`false`'",
        ),
        (
            route(LARGE, {"port": "b"}, **{"else": "c"}),
            "no event reaches else, because cases[1] is always true: remove one of them",
        ),
        (
            route({"port": "a"}, {"where": "`null`", "port": "b"}, {"port": "c"}),
            "cases[1] is never true: remove it, or correct '`null`'; no event reaches cases[2], because cases[0] is",
        ),
        (route(*[LARGE] * 101), "101 cases: from 1 to 100 are allowed"),
        (route({"where": "n >", "port": "a"}), "cases[0].where 'n >': "),
        (route({"where": "foo(n)", "port": "a"}), "cases[0].where 'foo(n)': there is no function foo()"),
        (route(), "0 cases: from 1 to 100 are allowed, such as [{where: \"paid\", port: done}]"),
        (route({"where": "n"}), "the option 'port' is missing"),
        (route({"where": "n", "prot": "a", "port": "a"}), "unknown option 'prot'; did you mean 'port'?"),
        (
            route({"where": "n", "port": "err"}),
            "cases[0].port: the port can't be named 'err': choose a name other than in, err",
        ),
        (route({"where": "n", "port": "a b"}), "cases[0].port: 'a b' is not a valid name of a port: it must have"),
        (route(LARGE, **{"else": ""}), "else: '' is not a valid name of a port"),
        (
            op("where", expression="n", **{"else": "out"}),
            "else: the port can't be named 'out': choose a name other than in, err, out",
        ),
        (op("roundrobin", ["a", "out"]), "outputs: the port can't be named 'out'"),
    ],
)  # fmt: skip
def test_options_that_are_wrong(operator: Op, text: str) -> None:
    (found,) = problems(operator)
    assert text in found


def test_all_can_have_a_case_that_is_always_true() -> None:
    with PipelineTest(route({"port": "a"}, LARGE, all=True)) as test:
        test.feed({"n": 1})
        assert test.outputs("a") == [{"n": 1}]
        assert test.sinks == ["err", "a", "large"]


def test_an_error_in_a_file_names_the_case() -> None:
    text = """
flows:
  f:
    connectors: {in: {type: "null"}, a: {type: "null"}}
    pipelines:
      p:
        - route:
            - {where: "n", port: a}
            - {where: "m", ports: a}
    connect: [in -> p, p.a -> a, p -> a]
"""
    with pytest.raises(FlowFileError) as caught:
        read_text(text)
    first = "flows.f.pipelines.p[0].cases[1].ports: unknown option 'ports'; did you mean 'port'?"
    assert any(first in each for each in caught.value.problems)


# -- the example ---------------------------------------------------------------------------------------------
def test_the_example_sorts_orders() -> None:
    spec = read_files([EXAMPLE], server="redis://localhost:6379").flows["sort"]
    orders = [
        {"id": 1, "country": "IT", "amount": 20}, {"id": 2, "country": "IT"}, {"id": 3, "country": "FR", "amount": 20},
        {"id": 4, "country": "FR", "amount": 20_000},
    ]  # fmt: skip
    with FlowTest(spec) as test:
        test.feed(*orders)
        arrived = {sink: [each["id"] for each in test.outputs(sink)] for sink in test.sinks}
        assert arrived == {"invalid": [2], "review": [4], "audit": [4], "export": [3], "home": [1]}
        assert sorted(test.settled) == [("ok", number) for number in range(4)]
