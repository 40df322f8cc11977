"""``check_codec`` and ``check_operator``: check that a codec or an operator fulfills its contract.

    def test_my_codec() -> None:
        check_codec(MyCodec, [{"a": 1}, {"b": "text"}])

    def test_my_operator() -> None:
        check_operator(MyOperator, [{"n": 1}, {"n": 2}], advance=60)

Both raise ConformanceError if the contract is violated. docs/flows-extending.md explains each rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, get_args

from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.codecs.base import NOTHING, MessageCodec
from tidelog.flows.declare import Op
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.connectorchecks import PATIENCE, ConformanceError, require
from tidelog.flows.testing.flowtest import PipelineTest, Status, pipeline_flow, tested_spec

MESSAGES: Final = (  # of broken peers
    b"", b"\n", b"\x00", b"\xff\xfe\xfd", b"\xef\xbb\xbf", b"{", b'"', b"[" * 2000, b"{" * 2000, b"a,b\r\n\"c", b"<13>",
    b"\xc1", b"\x81" * 2000, b"- " * 2000, b"m f=", b"0" * 5000,
)  # fmt: skip


class Unencodable:
    """A value that no codec can encode."""

    def __repr__(self) -> str:
        return "<unencodable>"


def check_codec(
    make: Callable[[], MessageCodec],
    values: Sequence[Any],
    *,
    messages: Sequence[bytes] = (),
    first: bytes | None = None,
) -> None:
    """Check a codec. Raises ConformanceError if it violates the contract.

    values: must be equal after encoding and decoding. messages: further messages to decode, valid or not. first: the
    first message of a stream (a header) for a codec that needs one before it can decode.
    """
    codec = make()
    text = "delimited is missing: True if messages end with a line break"
    require(isinstance(getattr(codec, "delimited", None), bool), text)
    alone = [_encoded(make(), each) for each in values]
    other = make()
    for value, message in zip(values, alone, strict=True):
        encoded = _encoded(codec, value)
        _encoded(other, values[0])  # a second stream must not influence the first one
        if not hasattr(codec, "header"):
            text = f"{value!r} is encoded differently after other values: only a codec with a header may have state"
            require(encoded == message, text)
        require(not codec.delimited or encoded.endswith(b"\n"), f"delimited is true, and {encoded!r} has no line break")
    for value, message in zip(values, alone, strict=True):
        _check_round_trip(make, value, message, first)
    for message in (*MESSAGES, *messages):
        _decoded(make(), message)
    try:
        result = make().encode(Unencodable(), {})
    except RejectError:
        return
    except Exception as error:
        text = f"encode raised {error!r} for a value that it can't encode: raise RejectError"
        raise ConformanceError(text) from error
    require(isinstance(result, bytes), f"encode returned {type(result).__name__}: it must return bytes")


def _encoded(codec: MessageCodec, value: Any) -> bytes:
    before = copy.deepcopy(value)
    try:
        encoded = codec.encode(value, {})
    except Exception as error:
        raise ConformanceError(f"encode raised {error!r} for {value!r}") from error
    require(isinstance(encoded, bytes), f"encode returned {type(encoded).__name__}: it must return bytes")
    require(value == before, f"encode changed the value: {before!r} became {value!r}")
    return encoded


def _check_round_trip(make: Callable[[], MessageCodec], value: Any, message: bytes, first: bytes | None) -> None:
    codec, header = make(), first
    if header is None and getattr(codec, "header", False):
        header, _, message = message.partition(b"\n")
    if header is not None:
        _decoded(codec, header)
    decoded = _decoded(codec, message)
    require(not isinstance(decoded, Exception), f"decode raised {decoded!r} for {message!r}, encoded from {value!r}")
    require(decoded == value, f"{value!r} became {decoded!r} after encoding and decoding")


def _decoded(codec: MessageCodec, message: bytes) -> Any:
    """Return the value, NOTHING or a ValueError."""
    meta: dict[str, Any] = {"given": 1}
    try:
        value = codec.decode(message, meta)
    except ValueError as error:
        return error
    except Exception as error:
        raise ConformanceError(f"decode raised {error!r} for {message[:40]!r}: raise ValueError") from error
    require(meta.get("given") == 1, "decode removed or changed entries of meta: it may only add some")
    require(value is NOTHING or not isinstance(value, type(NOTHING)), "decode returned Nothing(): return NOTHING")
    return value


def check_operator(
    operator: type[Operator] | Op | Callable[..., Any],
    values: Sequence[Any],
    *,
    advance: float = 3600.0,
    server: str | None = None,
) -> None:
    """Check an operator. Raises ConformanceError if it violates the contract.

    operator: an Operator class, a function, or ``op("window", ...)``. values: the events to process. advance: seconds
    after which the operator has emitted all events. server: the URL of a tidelog server for an operator that needs one;
    the check then runs in real time, and a drain must complete the events within 10 s.

    Each event must be settled exactly once, whatever the sinks answer, after time has passed and after a drain.
    """
    for status in get_args(Status):
        if server is None:
            _check_settlement(operator, values, status, advance)
        else:
            with _guarded(f"sinks answer {status}"):
                asyncio.run(_check_in_real_time(operator, values, status, server))
    if server is None:
        _check_drain(operator, values)
        _check_input(operator)


async def _check_in_real_time(operator: Any, values: Sequence[Any], status: Status, server: str) -> None:
    spec = tested_spec(pipeline_flow(operator, server=server))
    running = RunningFlow(spec, FlowContext(spec.name, server, debug=True))
    source: Any = running.graph.sources["in"].source
    for each in running.graph.sinks.values():
        sink: Any = each.sink
        sink.answer = lambda _: status
    await running.start()
    try:
        source.add([Event(value, None, number) for number, value in enumerate(copy.deepcopy(list(values)))])
        await asyncio.sleep(0.1)
        await running.drain(PATIENCE)
        ids = sorted(each.key for each in source.tokens)
        require(ids == list(range(len(values))), f"settled after sinks answered {status}: {ids} of {len(values)}")
        require(running.status != "failed", f"the flow failed: {running.error}")
    finally:
        await running.stop()


def _tested(operator: Any) -> PipelineTest:
    try:
        return PipelineTest(operator)
    except AssertionError:
        raise
    except Exception as error:
        raise ConformanceError(f"the operator can't be used in a pipeline: {error}") from error


def _check_settlement(operator: Any, values: Sequence[Any], status: Status, advance: float) -> None:
    with _guarded(f"sinks answer {status}"), _tested(operator) as test:
        for sink in test.sinks:
            test.answers(lambda _: status, sink)
        for value in values:  # one at a time: an operator gets batches of any size
            test.feed(copy.deepcopy(value))
        test.feed(*copy.deepcopy(list(values)))
        test.advance(advance)
        test.drain(advance)
        _require_settled(test, 2 * len(values), f"sinks answered {status}")


def _check_drain(operator: Any, values: Sequence[Any]) -> None:
    """Check that a drain flushes buffered events even if no time passes before it."""
    with _guarded("drain"), _tested(operator) as test:
        test.feed(*copy.deepcopy(list(values)))
        test.drain(60.0)
        _require_settled(test, len(values), "the flow was drained")


def _check_input(operator: Any) -> None:
    """Check that values that the operator does not expect fail their events, not the flow."""
    with _guarded("unexpected values"), _tested(operator) as test:
        odd: list[Any] = [None, 1, "text", b"\xff", [], [1], {}, {"a": None}]
        test.feed(*odd)
        test.advance(3600.0)
        test.drain(3600.0)
        _require_settled(test, len(odd), "unexpected values were processed")


def _require_settled(test: PipelineTest, count: int, when: str) -> None:
    ids = [each for _, each in test.settled]
    missing = sorted(set(range(count)) - set(ids))
    require(not missing, f"{len(missing)} of {count} events were not settled after {when}, such as event {missing[:1]}")
    require(len(ids) == len(set(ids)), f"an event was settled twice after {when}")


@contextlib.contextmanager
def _guarded(step: str) -> Iterator[None]:
    """Turn errors of the tested flow into a ConformanceError that names the step."""
    try:
        yield
    except ConformanceError:
        raise
    except AssertionError as error:
        raise ConformanceError(f"{step}: {error}") from error
