"""Every codec and operator of ours passes the conformance kit, and wrong ones fail it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tidelog.flows import Event, op, registry
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import OK
from tidelog.flows.codecs.base import CODECS, codec
from tidelog.flows.declare import Op
from tidelog.flows.testing import ConformanceError, check_codec, check_operator
from tidelog.testing import Server

JSON: list[Any] = [{"a": 1, "b": [1.5, None, True]}, [], "text", 3, None]
SYSLOG = {
    "protocol": "RFC5424", "facility": "user", "severity": "err", "timestamp": 1_000_000_000, "hostname": "h",
    "appname": "a", "procid": "1", "msgid": "m", "structured_data": {"x": {"k": "v"}}, "msg": "text",
}  # fmt: skip
POINT = {"measurement": "m", "tags": {"t": "x"}, "fields": {"f": 1.5, "i": 2, "s": 'a"b'}, "timestamp": 5}
VALUES: dict[str, list[Any]] = {  # by codec, as it is given in a flow
    "json": JSON, "msgpack": JSON, "yaml": JSON, "jsonl": [{"a": 1}, "text"], "string": ["text", ""],
    "binary": [b"\x00\xff", b""], "csv": [["a", 'b"c', "d\ne"], ["1", ""]], "influx": [POINT],
    "syslog": [SYSLOG, {**SYSLOG, "msg": None, "structured_data": None}],
}  # fmt: skip
EVENTS: list[Any] = [{"n": number, "key": f"k{number % 2}", "list": [1, 2]} for number in range(7)]
RATES = Path(__file__).parents[3] / "examples" / "flows" / "rates.json"
OPERATORS: dict[str, Op] = {
    "route": op("route", cases=[{"where": "n > `2`", "port": "a"}, {"where": "key", "port": "b"}], all=True),
    "branch": op("branch", operators=[{"where": "n != 3"}, {"map": "n * 2"}], set={"m": "@"}, cache={}),
    "enrich": op("enrich", file=str(RATES), key="key", set={"rate": "@"}),
    "map": op("map", set={"m": "n * 2"}, meta={"m": "$meta.m"}),
    "passthrough": op("passthrough"), "where": op("where", "n > `2`"), "select": op("select", "key"),
    "python": op("python", call=lambda value: value), "split": op("split", "list"), "unbatch": op("unbatch"),
    "batch": op("batch", count=3, timeout="5s"), "window": op("window", time="5s", aggregates={"n": "count"}),
    "group_by": op("group_by", key="@", path="list", aggregates={"n": "count"}),
    "ratelimit": op("ratelimit", rate=10.0), "bucket": op("bucket", rate=10.0),
    "sample": op("sample", 0.5), "delay": op("delay", "5s"), "retry": op("retry"),
    "fallback": op("fallback"), "counter": op("counter"), "history": op("history"),
    "backpressure": op("backpressure", timeout="5s"),
    "roundrobin": op("roundrobin", outputs=["a", "b"]), "percentile": op("percentile", 0.9),
}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_codecs(name: str) -> None:
    check_codec(lambda: codec(name), VALUES[name])


@pytest.mark.parametrize("name", registry.OPERATORS)
def test_operators(name: str, request: pytest.FixtureRequest) -> None:
    if name == "dedup":
        server: Server = request.getfixturevalue("tidelog_server")
        check_operator(op("dedup", "n"), EVENTS, server=server.url)
    else:
        check_operator(OPERATORS[name], EVENTS)


# -- the kit can fail ----------------------------------------------------------------------------------------
class Wrong:
    """A codec whose mistakes are options."""

    delimited: ClassVar[bool] = False

    def __init__(self, mistake: str) -> None:
        self._mistake = mistake
        self._count = 0

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:
        if self._mistake == "decode raises":
            return data.decode()[0]
        if self._mistake == "meta":
            meta.clear()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError("not text") from None
        return text.upper() if self._mistake == "changes" else text

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:
        self._count += 1
        if self._mistake == "encode raises" and not isinstance(value, str):
            raise TypeError("no text")
        if not isinstance(value, str):
            raise RejectError("not text")
        if self._mistake == "text":
            return value  # type: ignore[return-value] # the mistake
        if self._mistake == "state":
            return f"{self._count}".encode()
        return value.encode()


class WrongDelimited(Wrong):
    delimited = True


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("decode raises", "decode raised IndexError"),
        ("meta", "decode removed or changed entries of meta"),
        ("changes", "'a' became 'A' after encoding and decoding"),
        ("encode raises", "encode raised TypeError.*raise RejectError"),
        ("text", "encode returned str"),
        ("state", "encoded differently after other values"),
    ],
)
def test_a_wrong_codec_fails(mistake: str, text: str) -> None:
    with pytest.raises(ConformanceError, match=text):
        check_codec(lambda: Wrong(mistake), ["a", "b"])


def test_a_codec_without_the_line_break_that_it_announces_fails() -> None:
    with pytest.raises(ConformanceError, match="delimited is true"):
        check_codec(lambda: WrongDelimited(""), ["a"])


def test_a_right_codec_passes() -> None:
    check_codec(lambda: Wrong(""), ["a", "b"])


class Loses(Operator):
    """Drops an event without settling it."""

    def process(self, events: list[Event]) -> None:
        self.emit([each for each in events if each.value.get("n") != 3] if all(map(_plain, events)) else events)


class SettlesTwice(Operator):
    def process(self, events: list[Event]) -> None:
        for event in events:
            if event.token is not None:
                event.token.settle(OK)
        self.emit(events)


class Keeps(Operator):
    """Buffers events and does not flush them at a drain."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def process(self, events: list[Event]) -> None:
        self._events += events

    def kept(self) -> int:
        return len(self._events)


class Breaks(Operator):
    """Raises for values that it does not expect, which fails the flow."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.value["n"] += 0
        self.emit(events)


def _plain(event: Event) -> bool:
    return isinstance(event.value, dict) and "n" in event.value


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (Loses, "sinks answer"),
        (SettlesTwice, "sinks answer"),
        (Keeps, "not settled|drain"),
        (Breaks, "unexpected values"),
    ],
)
def test_a_wrong_operator_fails(wrong: type[Operator], text: str) -> None:
    with pytest.raises(ConformanceError, match=text):
        check_operator(wrong, EVENTS)
