"""Executes the tests of flow files (``tidelog.flows.files.testcases``) on the virtual clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.builtin.null import NullConnector
from tidelog.flows.files.testcases import CaseEvent, CaseStep, FlowCase, ports_of, time_ns
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec, PipelineSpec
from tidelog.flows.testing import differences
from tidelog.flows.testing.flowtest import FlowTest
from tidelog.flows.testing.virtualloop import BEGIN_NS
from tidelog.operating.errortexts import summary_of

ALONE = "(pipeline)"  # cannot be the name of a port


@dataclass
class CaseResult:
    """The result of a test. It has passed if there are no failures."""

    name: str
    where: str  # file:line
    flow: str
    seconds: float  # of real time
    failures: list[str] = field(default_factory=list)  # a line each

    @property
    def passed(self) -> bool:
        return not self.failures


def run_case(case: FlowCase) -> CaseResult:
    """Execute a test. Errors of the flow are failures of the test."""
    begun = time.perf_counter()
    try:
        failures = _failures(case)
    except Exception as error:  # noqa: BLE001 - operators and functions of users can raise any exception
        failures = [summary_of(error)]
    return CaseResult(case.name, case.where, case.spec.name, time.perf_counter() - begun, failures)


def _failures(case: FlowCase) -> list[str]:
    options = case.options
    spec = case.spec if options.pipeline is None else _alone(case)
    begin = BEGIN_NS if options.start is None else time_ns(options.start)
    failures: list[str] = []
    with FlowTest(spec, begin_ns=begin) as test:
        seen = _Outputs(test, case)
        for number, step in enumerate(case.steps):
            found = _step(step, test, seen)
            prefix = f"steps[{number}]: " if options.steps else ""
            failures += [prefix + each for each in found]
    return failures


def _step(step: CaseStep, test: FlowTest, seen: _Outputs) -> list[str]:
    for sink, status in step.answers.items():
        test.answers(lambda _, status=status: status, sink)  # type: ignore[misc] # mypy infers no type for the default
    given: list[Any] = list(step.input or ())
    given += [Event(each.value, dict(each.meta), attempt=each.attempt) for each in step.events or ()]
    if given:
        test.feed(*given, source=step.source)
    if step.advance is not None:
        test.advance(step.advance)
    if step.drain:
        report = test.drain()
        left = sum(report.abandoned.values())
        if left:
            return [f"drain: {left} events were not settled", *seen.compare(step)]
    return seen.compare(step)


class _Outputs:
    """The outputs of a test since its previous step."""

    def __init__(self, test: FlowTest, case: FlowCase) -> None:
        self._test = test
        self._ignore = case.options.ignore
        self._alone = case.options.pipeline is not None
        self._counts = dict.fromkeys(test.sinks, 0)
        self._letters: set[tuple[str, Any]] = set()  # source and ID

    def compare(self, step: CaseStep) -> list[str]:
        """Return the differences between what the step expects and the outputs since the previous one."""
        new = {sink: self._new(sink) for sink in self._counts}
        expected: dict[str, list[Any]] = {}
        if isinstance(step.output, dict):
            expected.update(step.output)
        else:
            expected["out" if self._alone else next(iter(new))] = step.output
        if self._alone and "err" not in expected and "err" not in step.output_events:
            expected["err"] = []  # an event that fails must be expected
        found: list[str] = []
        for sink, values in expected.items():
            actual = [self._plain(each.value) for each in new[sink]]
            found += differences.lists([self._plain(each) for each in values], actual, sink)
            if sink == "err" and len(actual) > len(values):
                found += [f"err: {each.meta.get('error', 'no reason')}" for each in new[sink]]
        for sink, events in step.output_events.items():
            found += differences.lists(
                [self._event(each) for each in events],
                [self._actual(each, events, at) for at, each in enumerate(new[sink])],
                sink,
            )
        return found + self._rejected(step)

    def _new(self, sink: str) -> list[Event]:
        events = self._test.output_events(sink)
        before, self._counts[sink] = self._counts[sink], len(events)
        return events[before:]

    def _plain(self, value: Any) -> Any:
        return differences.without(differences.plain(value), self._ignore)

    def _event(self, expected: CaseEvent) -> dict[str, Any]:
        return {"value": self._plain(expected.value), "meta": differences.plain(expected.meta)}

    def _actual(self, event: Event, expected: list[CaseEvent], at: int) -> dict[str, Any]:
        """Return an event with those values of its metadata that are expected."""
        names = expected[at].meta if at < len(expected) else event.meta
        meta = {name: event.meta[name] for name in names if name in event.meta}
        return {"value": self._plain(event.value), "meta": differences.plain(meta)}

    def _rejected(self, step: CaseStep) -> list[str]:
        if self._alone:
            return []
        new = [each for each in self._test.dead_letters() if (each.source, each.id) not in self._letters]
        new.sort(key=lambda each: each.id)  # IDs are numbers in the order of the input
        self._letters.update((each.source, each.id) for each in new)
        found = []
        for at, letter in enumerate(new):
            if at >= len(step.dead_letters):
                value = differences.shown(differences.plain(letter.value))
                found.append(f"dead_letters[{at}]: unexpected {value}: {letter.reason}")
            elif step.dead_letters[at] not in letter.reason:
                text = f"expected a reason with {step.dead_letters[at]!r}, got {letter.reason!r}"
                found.append(f"dead_letters[{at}]: {text}")
        return found + [f"dead_letters: missing {each!r}" for each in step.dead_letters[len(new) :]]


def _alone(case: FlowCase) -> FlowSpec:
    """Return a flow that has only the operators of the test: a source ``in``, and a sink for each port."""
    ports = ports_of(case.operators)
    connectors = {
        name: ConnectorSpec(name, "null", NullConnector, ConnectorOptions(), True, True) for name in ("in", *ports)
    }
    edges = [Edge("in", "out", ALONE), *(Edge(ALONE, port, port) for port in ports)]
    pipelines = {ALONE: PipelineSpec(ALONE, case.operators)}
    return FlowSpec(case.spec.name, connectors, pipelines, tuple(edges), server=case.spec.server)
