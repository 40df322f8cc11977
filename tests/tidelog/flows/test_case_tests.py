"""``tidelog flow test``: tests in flow files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.program import main
from tidelog.flows import FlowFileError
from tidelog.flows.files import read_text
from tidelog.flows.testing import differences
from tidelog.flows.testing.casetests import run_case

EXAMPLES = Path(__file__).parents[3] / "examples" / "flows"

FLOW = """
flows:
  sort:
    connectors:
      in: {type: stream, key: orders, group: g}
      big: {type: stream, key: big}
      small: {type: stream, key: small}
    pipelines:
      p:
        - where: "amount"
        - route: {cases: [{where: "amount > `10`", port: big}], else: small}
      b:
        - batch: {count: 2, timeout: 1s}
    connect: [in -> p, p.big -> big, p.small -> b -> small]
tests:
"""


def failures(tests: str, flow: str = FLOW) -> dict[str, list[str]]:
    """Run tests. Return the failures by name."""
    return {each.name: run_case(each).failures for each in read_text(flow + tests, server="redis://localhost:1").cases}


def tidelog(*words: str) -> Result:
    return CliRunner().invoke(main, ["flow", "test", *words])


@pytest.mark.parametrize("name", ["tests"])
def test_the_examples_pass(name: str) -> None:
    found = tidelog(str(EXAMPLES / f"{name}.yaml"))
    assert found.exit_code == 0, found.output
    assert ": 0 failed" not in found.output
    assert ", 0 failed" in found.output


def test_a_flow_a_pipeline_and_an_operator() -> None:
    found = failures("""
  flow:
    flow: sort
    input: [{amount: 20}, {amount: 1}, {}, {amount: 2}]
    output: {big: [{amount: 20}], small: [[{amount: 1}, {amount: 2}]]}
  pipeline:
    pipeline: p
    input: [{amount: 20}, {amount: 1}]
    output: {big: [{amount: 20}], small: [{amount: 1}]}
  operator:
    pipeline: p
    operator: 0
    input: [{amount: 20}, {}]
    output: [{amount: 20}]
  time:
    pipeline: b
    steps:
      - {input: [1], output: []}
      - {advance: 900ms, output: []}
      - {advance: 101ms, output: [[1]]}
      - {input: [2], drain: true, output: [[2]]}
  rejected:
    input: [{amount: 20}, {amount: "x"}]
    answers: {big: reject}
    dead_letters: [the test says so, "'>' not supported"]
  an event with metadata:
    pipeline: p
    operator: 0
    events: [{value: {amount: 1}, meta: {a: 1, b: 2}}]
    output_events: {out: [{value: {amount: 1}, meta: {b: 2}}]}
""")
    assert len(found) == 6
    assert not any(found.values()), found


def test_failures_name_what_differs() -> None:
    found = failures("""
  values:
    pipeline: p
    input: [{amount: 20, a: [1, {b: x}]}, {amount: 30}, {amount: 1}]
    output: {big: [{amount: 20, a: [1, {b: y}], c: null}], small: [{amount: 1}, {amount: true}]}
  an error that is not expected:
    pipeline: p
    input: [{amount: text}]
  a dead letter that is not expected:
    input: [{amount: text}]
  a dead letter that is missing:
    input: [{amount: 20}]
    dead_letters: ["x"]
  another reason:
    input: [{amount: text}]
    dead_letters: ["x"]
  metadata:
    pipeline: p
    operator: 0
    events: [{value: {amount: 1}, meta: {a: 1}}]
    output_events: {out: [{value: {amount: 1}, meta: {a: 2, b: 3}}]}
  a step:
    pipeline: b
    steps:
      - {input: [1]}
      - {advance: 1s, output: [[2]]}
  a drain:
    steps:
      - {input: [{amount: 20}], answers: {big: retry}, drain: true, output: {small: [1]}}
""")
    assert found["values"] == [
        'big[0].a[1].b: expected "y", got "x"', "big[0].c: missing, expected null",
        'big[1]: unexpected {"amount":30}', 'small: missing {"amount":true}',
    ]  # fmt: skip
    assert found["an error that is not expected"][0] == 'err[0]: unexpected {"amount":"text"}'
    assert "'>' not supported" in found["an error that is not expected"][1]
    assert "dead_letters[0]: unexpected" in found["a dead letter that is not expected"][0]
    assert found["a dead letter that is missing"] == ["dead_letters: missing 'x'"]
    assert "expected a reason with 'x', got" in found["another reason"][0]
    assert found["metadata"] == ["out[0].meta.a: expected 2, got 1", "out[0].meta.b: missing, expected 3"]
    assert found["a step"] == ["steps[1]: out[0][0]: expected 2, got 1"]
    assert found["a drain"] == ["steps[0]: small: missing 1"]


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("{flow: sorrt}", "tests.t.flow: there is no flow 'sorrt'; did you mean 'sort'?"),
        ("{pipeline: q}", "tests.t.pipeline: there is no pipeline 'q'"),
        ("{pipeline: p, operator: 2}", "2: the pipeline has 2 operators"),
        ("{operator: 1}", "operator requires pipeline"),
        ("{inptu: []}", "did you mean 'input'?"),
        ("{output: {bg: []}}", "there is no sink 'bg'; did you mean 'big'?"),
        ("{pipeline: p, output: {out: []}}", "there is no port 'out'"),
        ("{pipeline: p, output: []}", "there is no port out: name the ports"),
        ("{output: []}", "there are several sinks"),
        ("{source: out}", "there is no source 'out'"),
        ("{pipeline: p, dead_letters: [x]}", "a pipeline alone has no dead letters"),
        ("{steps: [{advance: -1s}]}", "advance"),
        ("{steps: [{}], input: []}", "input is an option of a step"),
        ("{input: [], events: []}", "exclusive"),
        ("{start: tomorrow}", "'tomorrow' is not a time"),
        ("{answers: {big: maybe}}", "answers"),
        ("[]", "a test is a mapping"),
    ],
)
def test_invalid_tests_are_reported_by_check(test: str, reason: str) -> None:
    with pytest.raises(FlowFileError) as error:
        read_text(f"{FLOW}  t: {test}\n", server="redis://localhost:1")
    (line,) = error.value.problems
    assert reason in line
    assert line.startswith("flows.yaml:16: ")


def test_the_wall_clock_can_be_set() -> None:
    flow = """
flows:
  f:
    connectors: {in: "null", out: "null"}
    pipelines: {p: [{window: {time: 1h, aggregates: {n: count}}}]}
    connect: [in -> p -> out]
tests:
"""
    found = failures("""
  default:
    input: [1]
    advance: 1h
    output: [{key: null, start: 1767225600, end: 1767229200, aggregates: {n: 1}, partial: false}]
  start: {start: "2026-11-27T12:59:59+01:00", ignore: [key, aggregates.n], input: [1], advance: 1s,
    output: [{start: 1795777200, end: 1795780800, aggregates: {}, partial: false}]}
""", flow)  # fmt: skip
    assert found == {"default": [], "start": []}


def test_files_beside_the_flow_are_read(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(FLOW.replace("tests:", ""))
    assert "there are no tests" in tidelog(str(flow)).output
    other = tmp_path / "orders.test.yaml"
    other.write_text("tests:\n  big ones: {input: [{amount: 20}], output: {big: [{amount: 20}]}}\n")
    found = tidelog(str(flow))
    assert (found.exit_code, found.output) == (0, f"{other}:2: passed: big ones\n1 test: 1 passed, 0 failed\n")
    assert tidelog(str(flow), str(other)).output == found.output
    other.write_text("tests:\n  big ones: {flow: missing}\n")
    found = tidelog(str(flow))
    assert found.exit_code == 1
    assert f"{other}:2: tests.big ones.flow: there is no flow 'missing'" in found.output


def test_results_for_programs(tmp_path: Path) -> None:
    flow = tmp_path / "f.yaml"
    flow.write_text(FLOW + "  good: {input: [{amount: 1}]}\n  <bad>: {input: [{amount: 20}], output: {big: [1]}}\n")
    found = tidelog(str(flow), "--json", "--junit", str(tmp_path / "out.xml"))
    assert found.exit_code == 1
    data: dict[str, Any] = json.loads(found.output)
    assert (data["passed"], data["failed"]) == (1, 1)
    assert data["tests"][1]["failures"] == ['big[0]: expected 1, got {"amount":20}']
    assert data["tests"][1]["at"] == f"{flow}:17"
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [each.get("name") for each in suite] == ["good", "<bad>"]
    assert "expected 1" in str(suite[1][0].get("message"))
    assert tidelog(str(flow), "-k", "GOOD").output.endswith("1 test: 1 passed, 0 failed\n")
    assert "has a name with 'zzz'" in tidelog(str(flow), "-k", "zzz").output
    assert "no-such-dir" in tidelog(str(flow), "-k", "good", "--junit", str(tmp_path / "no-such-dir" / "x")).output


def test_an_operator_that_raises_fails_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caseops.py").write_text(
        "from tidelog.flows.api.operator import Operator\n"
        "class Bad(Operator):\n    def process(self, events):\n        raise RuntimeError('broken')\n"
    )
    from tidelog.flows import Flow
    from tidelog.flows.files.testcases import CaseOptions, FlowCase

    monkeypatch.syspath_prepend(str(tmp_path))
    from caseops import Bad  # type: ignore[import-not-found]

    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("out", "null")
    flow.pipeline("p", Bad)
    flow.connect("in -> p -> out")
    for options in (CaseOptions(input=[1]), CaseOptions(input=[1], pipeline="p")):
        (failure,) = run_case(FlowCase("t", "f:1", flow.spec(), options)).failures
        assert "broken" in failure


def test_differences_of_lists() -> None:
    assert differences.lists([1, 2.0, "a", None], [1.0, 2, "a", None], "out") == []
    assert differences.lists([1, 2, 3, 4], [1, 3, 4], "out") == ["out: missing 2"]
    assert differences.lists([1, 3], [1, 2, 3], "out") == ["out[1]: unexpected 2"]
    assert differences.lists([True], [1], "out") == ["out[0]: expected true, got 1"]
    assert len(differences.lists(list(range(100)), [], "out")) == differences.MOST + 1
    assert differences.plain({"b": b"x", "c": b"\xff", 1: (1, 2)}) == {"b": "x", "c": "/w==", "1": [1, 2]}
    assert len(differences.shown("x" * 1000)) < 250
