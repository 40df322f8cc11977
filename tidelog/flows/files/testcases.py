"""Tests in flow files: the key ``tests``, and files that contain only tests, such as ``orders.test.yaml``.

    tests:
      large orders are reviewed:
        flow: sort                     # may be omitted if there is a single flow
        input: [{id: 1, amount: 20000}]
        output: {review: [{id: 1, amount: 20000}], home: []}

      a minute has one total:
        pipeline: totals               # only this pipeline; its ports are the outputs
        steps:
          - input: [{amount: 3}, {amount: 4}]
          - {advance: 1m, output: {out: [{total: 7}]}}

Rule 1: Names of flows, pipelines, sources and outputs are checked when the file is read, so ``tidelog flow check``
        reports them.
Rule 2: ``tidelog flow run`` reads and checks tests, but does not execute them (``tidelog.flows.testing.casetests``
        does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from tidelog.flows.spec import FlowSpec, OperatorSpec
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Problems, Struct, nearest, read
from tidelog.options.units import Duration, excerpt

MOST: Final = 1_000  # tests in a file

Status = Literal["ok", "discard", "reject", "retry"]


class CaseEvent(Struct):
    """An event with metadata: of the input, or expected."""

    value: Any
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    # The metadata. Expected: these values must be in the metadata; others are ignored.
    attempt: AtLeastOne = 1  # The number of the attempt. Not compared.


class CaseStep(Struct):
    """A step of a test: it feeds events, moves the clock, and then compares outputs."""

    input: list[Any] | None = None  # Values that the source sends.
    events: list[CaseEvent] | None = None  # Events that the source sends, each with `value` and `meta`.
    source: str | None = None  # The source that sends them. `null`: the only one.
    answers: dict[str, Status] = msgspec.field(default_factory=dict)
    # By sink: the outcome of its events from now on, `ok`, `discard`, `reject` or `retry`. Initially, it is `ok`.
    advance: Duration | None = None  # How far the clock moves after the input.
    drain: bool = False  # Whether the flow drains, after which no event can be sent.
    output: list[Any] | dict[str, list[Any]] = msgspec.field(default_factory=dict)
    # The expected values since the previous step, by sink, or by port of a pipeline. A list: of the only sink or `out`.
    output_events: dict[str, list[CaseEvent]] = msgspec.field(default_factory=dict)
    # The same with metadata.
    dead_letters: list[str] = msgspec.field(default_factory=list)
    # For each event that is rejected, in the order of the input: a part of the reason. Not for pipelines alone.

    def __post_init__(self) -> None:
        if self.input is not None and self.events is not None:
            raise ValueError("input and events are exclusive: give one of them")


class CaseOptions(CaseStep):
    """The options of a test. A test without ``steps`` is a single step."""

    flow: str | None = None  # The flow. `null`: the only one in the file, or in all files.
    pipeline: str | None = None  # Tests this pipeline alone. `null`: the whole flow.
    operator: int | None = None  # Tests the operator of the pipeline at this position alone, from 0.
    start: str | None = None  # The time at the beginning, in ISO 8601. `null`: 2026-01-01T00:00:00Z.
    ignore: list[str] = msgspec.field(default_factory=list)
    # Fields of values that are not compared, such as `id` or `order.id`.
    steps: list[CaseStep] = msgspec.field(default_factory=list)  # The steps, executed in this order.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps:
            alone = CaseStep()
            for name in CaseStep.__struct_fields__:
                if getattr(self, name) != getattr(alone, name):
                    raise ValueError(f"{name} is an option of a step: add it to one of the steps")
        if self.operator is not None and self.pipeline is None:
            raise ValueError("operator requires pipeline, in which it is a position")
        if self.start is not None:
            time_ns(self.start)


@dataclass(frozen=True)
class FlowCase:
    """A test of a file."""

    name: str
    where: str  # file:line
    spec: FlowSpec
    options: CaseOptions

    @property
    def steps(self) -> list[CaseStep]:
        """Return the steps. A test without steps is one itself."""
        return self.options.steps or [self.options]

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        """Return the operators that are tested alone; empty for a test of the whole flow."""
        options = self.options
        if options.pipeline is None:
            return ()
        operators = self.spec.pipelines[options.pipeline].operators
        return operators if options.operator is None else operators[options.operator : options.operator + 1]


def read_cases(
    given: Any, flows: Mapping[str, FlowSpec], own: list[str], file: str, line: Callable[[str], int], problems: Problems
) -> list[FlowCase]:
    """Read the tests of a file. Problems are added for tests that are not valid.

    ``own``: the names of the flows in the same file. ``line``: returns the line of a path.
    """
    if not isinstance(given, Mapping):
        problems.add("tests", f"a mapping from names to tests is expected, not {excerpt(given)}")
        return []
    if len(given) > MOST:
        problems.add("tests", f"{len(given)}: a file can have at most {MOST} tests")
        return []
    found = []
    for name, each in given.items():
        path = f"tests.{name}"
        if not isinstance(each, Mapping):
            problems.add(path, f"a test is a mapping with input and output, not {excerpt(each)}")
            continue
        options = read(CaseOptions, each, path, problems)
        if options is None:
            continue
        spec = _flow(options, flows, own, path, problems)
        if spec is not None:
            case = FlowCase(str(name), f"{file}:{line(path)}", spec, options)
            _check(case, path, problems)
            found.append(case)
    return found


def time_ns(text: str) -> int:
    """Return a time in ns since 1970. Raises ValueError if the text is not a time in ISO 8601."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"start: {text!r} is not a time such as 2026-01-31T12:00:00Z") from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1_000_000) * 1_000


def ports_of(operators: tuple[OperatorSpec, ...]) -> list[str]:
    """Return the ports on which operators emit events."""
    named = sorted({port for each in operators for port in each.ports if port != "out"})
    return [*([] if operators and operators[-1].last else ["out"]), "err", *named]


def _flow(
    options: CaseOptions, flows: Mapping[str, FlowSpec], own: list[str], path: str, problems: Problems
) -> FlowSpec | None:
    """Return the flow of a test. None: problems were added, or the flow itself is not valid."""
    if options.flow is not None:
        if options.flow not in flows and options.flow not in own:
            text = f"there is no flow {options.flow!r}; {nearest(options.flow, flows)}"
            problems.add(f"{path}.flow", text)
        return flows.get(options.flow)
    names = own or list(flows)
    if len(names) != 1:
        problems.add(path, f"there are {len(names)} flows: name one with the key 'flow'")
        return None
    return flows.get(names[0])


def _check(case: FlowCase, path: str, problems: Problems) -> None:
    """Add problems for names that do not exist."""
    options, spec = case.options, case.spec
    if options.pipeline is not None:
        if options.pipeline not in spec.pipelines:
            text = f"there is no pipeline {options.pipeline!r}; {nearest(options.pipeline, spec.pipelines)}"
            problems.add(f"{path}.pipeline", text)
            return
        count = len(spec.pipelines[options.pipeline].operators)
        if options.operator is not None and not 0 <= options.operator < count:
            text = f"{options.operator}: the pipeline has {count} operators, numbered from 0"
            problems.add(f"{path}.operator", text)
            return
        sources, outputs = ["in"], ports_of(case.operators)
    else:
        sources = [name for name in spec.connectors if any(each.source == name for each in spec.edges)]
        sources = [name for name in sources if spec.connectors[name].is_source]
        outputs = [name for name in spec.connectors if any(each.target == name for each in spec.edges)]
    for number, step in enumerate(case.steps):
        _check_step(step, case, sources, outputs, f"{path}.steps[{number}]" if options.steps else path, problems)


def _check_step(
    step: CaseStep, case: FlowCase, sources: Sequence[str], outputs: Sequence[str], path: str, problems: Problems
) -> None:
    alone = case.options.pipeline is not None
    feeds = step.input is not None or step.events is not None
    if step.source is not None and step.source not in sources:
        problems.add(f"{path}.source", f"there is no source {step.source!r}; {nearest(step.source, sources)}")
    elif feeds and step.source is None and len(sources) > 1:
        problems.add(path, f"there are several sources ({', '.join(sources)}): name one with the key 'source'")
    if isinstance(step.output, list):
        if alone and "out" not in outputs:
            problems.add(f"{path}.output", f"there is no port out: name the ports, which are {', '.join(outputs)}")
        elif not alone and len(outputs) > 1:
            problems.add(f"{path}.output", f"there are several sinks: name them, as in output: {{{outputs[0]}: [...]}}")
    for name in (*(step.output if isinstance(step.output, dict) else ()), *step.output_events, *step.answers):
        if name not in outputs:
            problems.add(path, f"there is no {'port' if alone else 'sink'} {name!r}; {nearest(name, outputs)}")
    if alone and step.dead_letters:
        problems.add(f"{path}.dead_letters", "a pipeline alone has no dead letters: use output: {err: [...]}")
