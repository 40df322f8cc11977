"""``select``: replaces the value of an event with the result of a JMESPath expression."""

from __future__ import annotations

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.jmescompiler import expression
from tidelog.options.structs import Struct


class SelectOptions(Struct):
    """The options of ``select``."""

    expression: str  # A JMESPath expression. The short form: `select: "..."`.


class SelectOperator(Operator):
    """Implements ``select``, with a compiled expression."""

    type = "select"
    short = "expression"
    Options = SelectOptions

    def __init__(self, options: SelectOptions) -> None:
        self._run = expression(options.expression)

    def process(self, events: list[Event]) -> None:
        run = self._run
        good: list[Event] = []
        for event in events:
            try:
                event.value = run(event.value)
                good.append(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        self.emit(good)
