"""``route``: sends each event to the port of the first case that is true, or of all cases that are true.

Rule 1: An event is sent after its conditions have been evaluated: until the first one that is true, or with ``all`` all
        of them. If one raises an exception, the event fails and is sent to no port but ``err``.
Rule 2: With ``all``, an event is sent at most once to each port. The copies share its token, so the source is notified
        once, with the worst outcome.
Rule 3: All ports must be connected, so no event is discarded by mistake. A case that no event can reach is an error.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.edges import check_port
from tidelog.flows.operators.jmescompiler import Run, canonical, expression, is_true, truth
from tidelog.options.structs import Struct

MOST: Final = 100  # cases: a batch of 512 events that fit none costs about 10 ms
EXAMPLE: Final = '[{where: "paid", port: done}]'

Condition: TypeAlias = "tuple[Run, str]"  # the condition and the port


class RouteCase(Struct):
    """One case of ``route``."""

    port: str  # The name of a port, which must be connected. `out` leads to the next operator.
    where: str | None = None  # A JMESPath expression. `null`: every event.


class RouteOptions(Struct):
    """The options of ``route``."""

    cases: list[RouteCase]
    # The cases in order, each with `where`, a JMESPath expression, and `port`. Without `where`, a case is always true.
    # Several cases can have the same port. The short form: `route: [{where: "...", port: a}]`.
    else_: str | None = msgspec.field(default="out", name="else")
    # The port of events for which no case is true. `null`: they are discarded.
    all: bool = False  # `true`: an event is sent to the ports of all cases that are true, instead of the first one.


class RouteOperator(Operator):
    """Implements ``route``, with compiled expressions."""

    type = "route"
    short = "cases"
    Options = RouteOptions

    def __init__(self, options: RouteOptions) -> None:
        _check(options)
        self._cases: list[Condition] = []
        for number, case in enumerate(options.cases):
            self._cases.append((expression(_condition(case), f"cases[{number}].where"), case.port))
        _check_reached(options)
        certain = any(truth(_condition(each)) for each in options.cases)
        self._else = None if certain else options.else_
        self._choose_all = options.all
        used = [case.port for case in options.cases] + ([] if self._else is None else [self._else])
        self._used = tuple(dict.fromkeys(used))
        self.last = "out" not in self._used

    def ports(self) -> tuple[str, ...]:
        return tuple(each for each in self._used if each != "out")

    def required(self) -> tuple[str, ...]:
        return self._used

    def process(self, events: list[Event]) -> None:
        chosen: dict[str | None, list[Event]] = {port: [] for port in self._used}
        others = chosen.setdefault(None, [])
        if self._choose_all:
            self._all(events, chosen)
        else:
            self._first(events, chosen)
        self.drop(others, "route: no case is true")
        for port in self._used:
            self.emit(chosen[port], port)

    def _first(self, events: list[Event], chosen: dict[str | None, list[Event]]) -> None:
        cases = [(run, chosen[port].append) for run, port in self._cases]
        other = chosen[self._else].append
        for event in events:
            value = event.value
            try:
                for run, add in cases:
                    found = run(value)
                    if found is True or (found is not False and is_true(found)):
                        add(event)
                        break
                else:
                    other(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)

    def _all(self, events: list[Event], chosen: dict[str | None, list[Event]]) -> None:
        for event in events:
            value = event.value
            try:
                ports = dict.fromkeys(port for run, port in self._cases if is_true(run(value)))
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
                continue
            first, *more = ports or (self._else,)
            chosen[first].append(event)
            for port in more:
                chosen[port].append(event.fork())


def _check(options: RouteOptions) -> None:
    """Raise ValueError if there are no cases, or too many, or if the name of a port is not valid."""
    if not 0 < len(options.cases) <= MOST:
        raise ValueError(f"{len(options.cases)} cases: from 1 to {MOST} are allowed, such as {EXAMPLE}")
    for number, case in enumerate(options.cases):
        check_port(case.port, f"cases[{number}].port")
    if options.else_ is not None:
        check_port(options.else_, "else")


def _check_reached(options: RouteOptions) -> None:
    """Raise ValueError with all cases that no event can reach. The expressions are valid."""
    problems = []
    certain: int | None = None  # the first case that is always true
    seen: dict[str, int] = {}  # cases by condition
    for number, case in enumerate(options.cases):
        value = truth(_condition(case))
        condition = canonical(_condition(case))
        text = f"no event reaches cases[{number}], because"
        if value is False:
            problems.append(f"cases[{number}] is never true: remove it, or correct {case.where!r}")
        elif certain is not None and not options.all:
            problems.append(f"{text} cases[{certain}] is always true: put that one last, or set all: true")
        elif condition in seen and not options.all:
            problems.append(f"{text} cases[{seen[condition]}] has the same condition: remove one, or set all: true")
        if value and certain is None:
            certain = number
        seen.setdefault(condition, number)
    if certain is not None and options.else_ not in (None, "out"):
        problems.append(f"no event reaches else, because cases[{certain}] is always true: remove one of them")
    if problems:
        raise ValueError("; ".join(problems))


def _condition(case: RouteCase) -> str:
    return "`true`" if case.where is None else case.where
