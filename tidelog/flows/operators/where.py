"""``where``: passes on the events for which a JMESPath expression is true, and discards the others, or sends them to a
port.
"""

from __future__ import annotations

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.edges import check_port
from tidelog.flows.operators.jmescompiler import expression, is_true
from tidelog.options.structs import Struct


class WhereOptions(Struct):
    """The options of ``where``."""

    expression: str  # A JMESPath expression. The short form: `where: "..."`.
    else_: str | None = msgspec.field(default=None, name="else")
    # The port of the other events, which must be connected. `null`: they are discarded.


class WhereOperator(Operator):
    """Implements ``where``, with a compiled expression."""

    type = "where"
    transparent = True
    short = "expression"
    Options = WhereOptions

    def __init__(self, options: WhereOptions) -> None:
        self._run = expression(options.expression)
        self._else = options.else_
        if options.else_ is not None:
            check_port(options.else_, "else", "out")

    def ports(self) -> tuple[str, ...]:
        return () if self._else is None else (self._else,)

    def required(self) -> tuple[str, ...]:
        return () if self._else is None else ("out", self._else)

    def process(self, events: list[Event]) -> None:
        run = self._run
        good: list[Event] = []
        others: list[Event] = []
        for event in events:
            try:
                found = run(event.value)
                if found is True or (found is not False and is_true(found)):
                    good.append(event)
                else:
                    others.append(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        if self._else is None:
            self.drop(others, "where: not true")
        else:
            self.emit(others, self._else)
        self.emit(good)
