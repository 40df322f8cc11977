"""``map``: fields that are set, removed, and computed; an event that fails is unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.flows import Event, op
from tidelog.flows.declare import Op, operator_spec
from tidelog.flows.files import read_text
from tidelog.flows.testing import FlowTest, PipelineTest
from tidelog.options.structs import Problems

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flows" / "accesslog.yaml"


def mapped(value: Any, *given: Any, **options: Any) -> Any:
    with PipelineTest(op("map", *given, **options)) as test:
        test.feed(value)
        return test.outputs()[0]


def problem(**options: Any) -> str:
    problems = Problems()
    assert operator_spec(Op("map", options), "p[0]", problems) is None
    ((_, text),) = problems.found
    return text


def test_the_short_form_replaces_the_value() -> None:
    assert mapped({"a": 2}, "{double: a * 2}") == {"double": 4}
    assert mapped({"a": 2}, "missing") is None
    assert mapped('{"a": 1}', "parse_json(@)") == {"a": 1}


def test_fields_are_set_in_order_and_removed_at_the_end() -> None:
    found = mapped(
        {"n": 2, "old": 1, "in": {"x": 1, "y": 2}},
        set={"twice": "n * 2", "n": "twice + old", '"first name"': "'Ann'", "a.b.c": "n", "in.z": "in.x"},
        remove=["old", "in.y", "missing.too", "n.m"],
    )
    assert found == {"n": 5, "in": {"x": 1, "z": 1}, "twice": 4, "first name": "Ann", "a": {"b": {"c": 5}}}


def test_the_value_comes_first_and_the_metadata_last() -> None:
    options = {
        "value": "{n: n, topic: $meta.topic, id: $id, at: $time}", "set": {"m": "n + 1"},
        "meta": {"m": "m", "gone": "missing", "was": "$meta.topic"},
    }  # fmt: skip
    with PipelineTest(op("map", **options)) as test:
        test.feed(Event({"n": 1}, {"topic": "t", "gone": 1}, 17, ingest_ns=2_500_000_000))
        (event,) = test.output_events()
    assert event.value == {"n": 1, "topic": "t", "id": 17, "at": 2.5, "m": 2}
    assert event.meta == {"topic": "t", "m": 2, "was": "t"}


def test_a_field_can_be_the_whole_value() -> None:
    found = mapped({"a": {"b": 1}}, set={"all": "@", "again": "@", "copy": "a", "a.c": "2", "all.a.b": "3"})
    assert found["all"] == {"a": {"b": 3}}
    assert found["again"] == {"a": {"b": 1}, "all": {"a": {"b": 1}}}
    assert (found["a"], found["copy"]) == ({"b": 1, "c": 2}, {"b": 1})


def test_an_event_that_fails_is_unchanged() -> None:
    options: dict[str, Any] = {"set": {"in.a": "1", "n": "n + 1", "bad": "upper(n)"}, "meta": {"m": "1"}}
    with PipelineTest(op("map", **options)) as test:
        test.feed(Event({"n": 1, "in": {}}, {"k": 1}, 0), Event([1], id=1), Event({"n": 1, "in": "text"}, id=2))
        first, second, third = sorted(test.output_events("err"), key=lambda event: event.id)
    assert first.value == {"n": 1, "in": {}}
    error = "ExpressionError: upper(): argument 1 (string) is the number 2: it must be a string"
    assert first.meta["error"] == error
    assert first.meta.keys() == {"k", "error", "error_at"}
    assert (second.value, third.value) == ([1], {"n": 1, "in": "text"})
    wanted = "ExpressionError: the value is the list [1]: an object is needed for the field in.a"
    assert second.meta["error"] == wanted
    assert third.meta["error"].startswith("ExpressionError: the field in is the string 'text': an object is needed")


def test_an_event_that_fails_is_rejected_if_err_is_not_connected() -> None:
    text = """
flows:
  f:
    connectors: {in: {type: "null", count: 1, value: {n: x}}, out: {type: "null"}}
    pipelines: {p: [{map: {set: {n: "n + 1"}}}]}
    connect: [in -> p -> out]
"""
    with FlowTest(read_text(text).flows["f"]) as test:
        test.feed({"n": "x"}, {"n": 1})
        (letter,) = test.dead_letters()
        assert letter.reason.endswith(
            "the left side of + is the string 'x': it must be a number; concat() joins strings"
        )
        assert test.outputs("out") == [{"n": 2}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "no option: use {set:"),
        ({"set": {"a": "b +"}}, "set.a 'b +': "),
        ({"set": {"a": "lowwer(b)"}}, "there is no function lowwer(); did you mean 'lower'?"),
        ({"set": {"a[0]": "b"}}, "set: 'a[0]' is not a path to a field"),
        ({"set": {"first-name": "b"}}, "set: 'first-name' is not a path to a field"),
        ({"remove": ["a.*"]}, "remove: 'a.*' is not a path to a field"),
        ({"meta": {"a": "$mta"}}, "there is no variable $mta; known are $id, $meta, $time"),
        ({"set": {"a": 5}}, "Expected `str`, got `int`"),
        ({"set": {"a": "grok(b, '%{IPP:a}')"}}, "there is no grok pattern IPP; did you mean 'IP'?"),
        ({"set": {"a": "regex_find(b, '(')"}}, "the pattern '(' is not valid: missing ): ("),
        ({"set": {"a": "regex_find(b, '(?<=x)y')"}}, "RE2 has no look-around"),
        ({"set": {"a": "format_time(b, '%Q')"}}, "%Q in the format '%Q' is not a directive"),
        ({"set": {"a": "parse_time(b, '%G')"}}, "the format '%G' can't be used to parse"),
        ({"set": {"a": "format_time(b, '%Y', 'Europe/Roma')"}}, "there is no time zone 'Europe/Roma'"),
        ({"set": {"a": "hash(b, 'md4')"}}, "'md4' is not known: use md5, "),
        ({"set": {"a": "upper(5)"}}, "argument 1 (string) is the number 5: it must be a string"),
    ],
)  # fmt: skip
def test_check_reports_what_is_wrong(options: dict[str, Any], text: str) -> None:
    assert text in problem(**options)


def test_the_example_runs(tmp_path: Path) -> None:
    line = '10.0.0.{} - - [27/Nov/2026:09:30:0{} +0100] "GET /tea?n=1 HTTP/1.1" {} 12 "-" "curl" {}\n'
    requests = [(200, 0.1), (503, 0.25), (200, 1.5)]
    log = "".join(line.format(n, n, *each) for n, each in enumerate(requests)) + "no request\n"
    command = [sys.executable, "-m", "tidelog.cli", "flow", "run", str(EXAMPLE), "--listen", "none"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, input=log, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failed, slow = map(json.loads, done.stdout.splitlines())
    assert failed == {
        "verb": "GET", "response": 503, "bytes": 12, "agent": '"curl"', "time": "2026-11-27T08:30:01Z", "ms": 250,
        "problem": "failed", "path": "/tea", "client": failed["client"],
    }  # fmt: skip
    assert (slow["problem"], slow["ms"], len(slow["client"])) == ("slow", 1500, 16)
    assert (tmp_path / "unreadable.txt").read_text() == "no request\n"
