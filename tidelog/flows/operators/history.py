"""``history``: records the names of the operators that an event has passed, for debugging."""

from __future__ import annotations

from typing import Final

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.options.structs import Struct

MOST: Final = 100  # maximum number of names; the oldest ones are removed


class HistoryOptions(Struct):
    """The options of ``history``."""

    name: str | None = None  # The name to append. `null`: the name of the operator, such as `enrich.2`.


class HistoryOperator(Operator):
    """Appends a name to ``meta["history"]``."""

    type = "history"
    short = "name"
    Options = HistoryOptions

    def __init__(self, options: HistoryOptions | None = None) -> None:
        self._given = options.name if options is not None else None

    def process(self, events: list[Event]) -> None:
        name = self._given or self.node.name
        for event in events:
            passed = event.meta.get("history")
            # a new list, because other branches of the event share the old one
            event.meta["history"] = [*passed[1 - MOST :], name] if isinstance(passed, list) else [name]
        self.emit(events)
