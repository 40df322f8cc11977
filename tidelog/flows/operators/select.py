"""``select``: an event's value becomes what an expression makes of it."""

from __future__ import annotations

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.jmescompiler import expression
from tidelog.options.structs import Struct


class SelectOptions(Struct):
    """Its options."""

    expression: str  # A JMESPath expression. The short form: `select: "..."`.


class SelectOperator(Operator):
    """Of JMESPath, compiled (``jmes``)."""

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
            except Exception as error:  # noqa: BLE001 - values are whatever a codec or a function made
                self.fail(event, error)
        if good:
            self.emit(good)
