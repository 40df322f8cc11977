"""``where``: passes on the events for which a JMESPath expression is true."""

from __future__ import annotations

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.jmescompiler import expression, is_true
from tidelog.options.structs import Struct


class WhereOptions(Struct):
    """The options of ``where``."""

    expression: str  # A JMESPath expression. The short form: `where: "..."`.


class WhereOperator(Operator):
    """Implements ``where``, with a compiled expression."""

    type = "where"
    transparent = True
    short = "expression"
    Options = WhereOptions

    def __init__(self, options: WhereOptions) -> None:
        self._run = expression(options.expression)

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
        self.drop(others, "where: not true")
        self.emit(good)
