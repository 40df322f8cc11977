"""Flows made in Python: what is wrong with one is said at once, all of it, with its path and the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tidelog.flows import Event, Flow, FlowFileError, op
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.operator import Operator
from tidelog.flows.files import read_text
from tidelog.flows.spec import Edge
from tidelog.options.units import Duration

WHOLE = "the target must be a connector or pipeline without a port"


def problems(call: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(FlowFileError) as caught:
        call()
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def orders() -> Flow:
    flow = Flow("orders")
    flow.connector("in", "null", count=3)
    flow.connector("out", "null")
    flow.pipeline("p", op("passthrough"), op("passthrough"))
    return flow


class Aside(Operator):
    def ports(self) -> tuple[str, ...]:
        return ("aside",)


class Only(Source):
    pass


def test_a_flow_is_what_was_declared() -> None:
    flow = orders()
    flow.connect("in -> p -> out", "p.1.err -> out", "p.err -> out")
    spec = flow.spec()
    assert spec.name == "orders"
    assert [each.type for each in spec.pipelines["p"].operators] == ["passthrough", "passthrough"]
    assert spec.edges == (
        Edge("in", "out", "p"), Edge("p", "out", "out"), Edge("p", "err", "out", 1), Edge("p", "err", "out"),
    )  # fmt: skip
    assert spec.connectors["in"].given == {"count": 3}
    assert (spec.instances, spec.paused, spec.queue, spec.settle, spec.debug) == (1, False, 128, True, False)
    assert spec.drain_timeout == 30


def test_a_pipeline_of_nothing_passes_everything() -> None:
    flow = Flow("f")
    flow.pipeline("p")
    flow.connector("in", "null")
    flow.connector("out", "null")
    flow.connect("in -> p -> out")
    assert [each.type for each in flow.spec().pipelines["p"].operators] == ["passthrough"]


def test_all_options_that_are_wrong_are_said_at_once() -> None:
    assert problems(
        lambda: orders().connector(
            "m", "metronome", intervall="1s", max_unsettled="many", reconnect={"retry": {"grow": 2, "jitter": "some"}}
        )
    ) == (
        "orders.connectors.m.intervall: unknown option 'intervall'; did you mean 'interval'?",
        "orders.connectors.m.max_unsettled: Expected `int`, got `str`",
        "orders.connectors.m.reconnect.retry.grow: unknown option 'grow'; did you mean 'growth'?",
        "orders.connectors.m.reconnect.retry.jitter: Expected `float`, got `str`",
        "orders.connectors.m: the option 'interval' is missing",
    )


def test_options_of_other_engines_have_a_remedy() -> None:
    found = problems(lambda: orders().connector("s", "stream", key="a", max_deliveries=3, retry_delay="1s"))
    assert [each.partition(": ")[2] for each in found] == [
        "unknown option 'max_deliveries': limit the attempts with on_error: [retry: {attempts: 4}, dead_letter]",
        "unknown option 'retry_delay': set the delays with on_error: [retry: {first: 1s, most: 30s}, dead_letter]",
    ]
    (text,) = problems(lambda: orders().connector("s", "stream", key="a", on_error=[]))
    assert "on_error is empty: name the final action, one of dead_letter, skip, pause, halt" in text


def test_what_options_say_themselves_is_said_with_the_path() -> None:
    assert problems(lambda: orders().connector("m", "metronome", interval=0)) == (
        "orders.connectors.m.interval: it is 0: it must be more than 0",
    )
    assert problems(lambda: orders().connector("n", "null", max_unsettled=0)) == (
        "orders.connectors.n.max_unsettled: Expected `int` >= 1, got 0",
    )
    assert problems(lambda: Flow("f", instances=0, queue=1)) == ("f.instances: Expected `int` >= 1, got 0",)
    assert problems(lambda: Flow("f", instance=2)) == (
        "f.instance: unknown option 'instance'; did you mean 'instances'?",
    )


def test_unknown_types_have_the_nearest_one() -> None:
    assert problems(lambda: orders().connector("m", "metronom")) == (
        "orders.connectors.m: there is no connector of type 'metronom'; did you mean 'metronome'?",
    )
    operators = op("passthrou"), op("passthrough", x=1), op("passthrough", "x")
    assert problems(lambda: orders().pipeline("q", *operators)) == (
        "orders.pipelines.q[0]: there is no operator of type 'passthrou'; did you mean 'passthrough'?",
        "orders.pipelines.q[1].x: unknown option 'x'; there are none",
        "orders.pipelines.q[2]: passthrough takes its options by name, such as {passthrough: {...}}, and not 'x'",
    )


def test_names_are_checked() -> None:
    assert problems(lambda: Flow("1")) == (
        "1: '1' is not a valid name of a flow: it must have 1 to 100 letters, digits, - and _, and begin with a letter",
    )
    assert "'a b' is not a valid name" in problems(lambda: orders().connector("a b", "null"))[0]
    assert problems(lambda: orders().connector("p", "null")) == (
        "orders.p: there is already a connector or pipeline 'p'",
    )
    assert problems(lambda: orders().pipeline("in")) == ("orders.in: there is already a connector or pipeline 'in'",)


def test_chains_that_cant_be_read() -> None:
    assert problems(lambda: orders().connect("in", "in -> -> out", "in -> p.0", "in -> p.side")) == (
        "orders.connect: 'in' is not a chain such as source -> target",
        "orders.connect: '' in 'in -> -> out' is not a name, name.port or name.position.port",
        "orders.connect: '' in 'in -> -> out' is not a name, name.port or name.position.port",
        f"orders.connect: 'p.0' in 'in -> p.0': {WHOLE}",
        f"orders.connect: 'p.side' in 'in -> p.side': {WHOLE}",
    )


def test_all_that_is_wrong_with_connections_is_said_at_once() -> None:
    flow = orders()
    flow.connector("source", Only)
    flow.connector("idle", "null")
    flow.pipeline("q", Aside)
    flow.pipeline("r")
    flow.pipeline("s")
    flow.connect("in -> p -> source", "in -> pp", "p.7.out -> out", "p.asid -> out", "in.side -> out", "r -> s -> r")
    assert set(problems(flow.spec)) == {
        "orders.connect: events can't be written to 'source': connectors of type python are only sources",
        "orders.connect: there is no connector or pipeline 'pp'; did you mean 'p'?",
        "orders.connect: the pipeline 'p' has 2 operators, numbered from 0: there is no 7",
        "orders.connect: the pipeline 'p' has no port 'asid'; known are err, out",
        "orders.connect: the connector 'in' has no port 'side': it has out, err, responses",
        "orders.connect: a cycle: r -> s -> r",
        "orders.pipelines.q: no edge leads to the pipeline 'q'",
        (
            "orders.pipelines.q: q.out is not connected, so events would be settled without reaching a sink; connect it"
            " to a connector, such as null"
        ),
        "orders.connectors.idle: the connector 'idle' is not connected",
    }


def test_a_dead_end_is_allowed_where_nothing_is_guaranteed() -> None:
    flow = Flow("f", settle=False)
    flow.connector("in", "null")
    flow.pipeline("p")
    flow.connect("in -> p")
    assert flow.spec().settle is False


def test_what_a_sink_answers_goes_out_of_its_port() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("peer", "null")
    flow.connector("out", "null")
    flow.connect("in -> peer", "peer.responses -> out")
    assert flow.spec().edges[1] == Edge("peer", "responses", "out")


@pytest.mark.parametrize("action", ["pause", "halt"])
def test_a_source_that_can_not_send_again_does_not_pause(action: str) -> None:
    def flow(policy: str) -> Flow:
        made = Flow("f")
        made.connector("in", "metronome", interval=1, on_error=policy)
        made.connector("out", "null")
        made.connect("in -> out")
        return made

    text = (
        "f.connectors.in: on_error: {} is not possible, because the source can't send an event again: use dead_letter"
    )
    assert problems(flow(action).spec) == (text.format(action),)
    assert flow("skip").spec().connectors["in"].options.on_error.action == "skip"


@pytest.mark.parametrize("action", ["dead_letter", "skip"])
def test_a_source_that_can_not_send_again_does_not_retry(action: str) -> None:
    made = Flow("f")
    made.connector("in", "metronome", interval=1, on_error=[{"retry": {"attempts": 4}}, action])
    made.connector("out", "null")
    made.connect("in -> out")
    text = (
        "f.connectors.in: on_error: retry is not possible, because the source can't send an event again: use"
        f" on_error: {action}, and the operator retry in a pipeline"
    )
    assert problems(made.spec) == (text,)


def test_functions_and_classes_are_connectors() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def take(value: int) -> None:
        """Takes it."""

    class Takes(Sink):
        async def write(self, events: list[Event]) -> None:
            """Takes them."""

    flow = Flow("f")
    flow.connector("in", numbers)
    flow.connector("a", take, concurrency=2)
    flow.connector("b", Takes, paused=True)
    flow.connect("in -> a", "in -> b")
    spec = flow.spec()
    assert [each.is_source for each in spec.connectors.values()] == [True, False, False]
    assert [each.is_sink for each in spec.connectors.values()] == [False, True, True]
    assert spec.connectors["b"].options.paused
    assert problems(lambda: flow.connector("c", 17)) == (  # type: ignore[arg-type]
        (
            "f.connectors.c: 17 is not a connector: use a type name, a class of Source or Sink, an async generator"
            " function or an async function"
        ),
    )
    assert problems(lambda: flow.connector("c", take, concurrency=0)) == (
        "f.connectors.c.concurrency: Expected `int` >= 1, got 0",
    )


def test_a_connection_that_is_given_twice_is_one() -> None:
    """Two chains that begin alike are how one writes a fan-out: events don't go twice for it."""
    flow = Flow("f")
    flow.connector("in", "null")
    for name in ("a", "b"):
        flow.connector(name, "null")
    flow.pipeline("p")
    flow.connect("in -> p -> a", "in -> p -> b")
    assert [(each.source, each.target) for each in flow.spec().edges] == [("in", "p"), ("p", "a"), ("p", "b")]


def test_a_circle_through_the_responses_of_a_sink_is_found() -> None:
    class Asks(Sink):
        pass

    class Both(Source, Sink):
        pass

    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("asks", Asks)
    flow.connector("both", Both)
    flow.pipeline("p")
    flow.pipeline("q")
    flow.connect("in -> p -> asks -> p", "both -> q -> both", "both.responses -> q")
    with pytest.raises(FlowFileError) as found:
        flow.spec()
    assert sorted(found.value.problems) == [
        "f.connect: a cycle: p -> asks -> p",
        "f.connect: a cycle: q -> both.responses -> q",
    ]


def test_a_connector_cant_have_the_name_of_the_api() -> None:
    """``paused:api`` is the reason of a flow that is paused: a connector's own would be taken for it."""
    with pytest.raises(FlowFileError, match="api"):
        Flow("f").connector("api", "null")


def test_a_class_of_operator_says_what_it_needs() -> None:
    class Last(Operator):
        last = True

        def ports(self) -> tuple[str, ...]:
            return ("there",)

        def required(self) -> tuple[str, ...]:
            return self.ports()

        def needs_server(self) -> bool:
            return True

    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("out", "null")
    flow.pipeline("p", Last, Last)
    flow.connect("in -> p -> out")
    with pytest.raises(FlowFileError) as found:
        flow.spec()
    text = str(found.value)
    assert "must be the last operator" in text
    assert "is not connected" in text
    assert "needs a tidelog server" in text


@pytest.mark.parametrize("given", [10**400, "9" * 400 + "s"])
def test_a_duration_that_is_too_long_is_none(given: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.read(given)


@pytest.mark.parametrize("place", ['in: {type: stream, key: k, url: "redis://h:1"}', "in: {type: redis_list, key: k}"])
def test_a_connector_with_its_own_server_needs_none_of_the_flow(place: str) -> None:
    text = f"flows: {{main: {{connectors: {{{place}, out: 'null'}}, connect: [in -> out]}}}}"
    document = read_text(text, variables={})
    assert document.flows["main"].server is None
    with pytest.raises(FlowFileError, match="connectors of type stream need a tidelog server"):
        read_text(
            "flows: {main: {connectors: {in: {type: stream, key: k}, out: 'null'}, connect: [in -> out]}}", variables={}
        )
