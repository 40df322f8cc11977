"""``map``: computes fields of the value and of the metadata.

Rule 1: An event that fails is unchanged: on ``err``, it has its original value and metadata.
Rule 2: Changes are made to copies (``fieldpaths``).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.expressions.calls import Run
from tidelog.flows.expressions.nodes import Cell
from tidelog.flows.operators.fieldpaths import field_path, with_field, without_field
from tidelog.flows.operators.jmescompiler import expression
from tidelog.options.structs import Struct

MOST: Final = 1000  # fields in each option


class MapOptions(Struct):
    """The options of ``map``."""

    value: str | None = None  # An expression that replaces the value. The short form: `map: "..."`.
    set: dict[str, str] = msgspec.field(default_factory=dict)
    # Fields, as paths such as `customer.city`, and their expressions. They are set in this order, and each expression
    # sees the fields that were set before it. Objects that a path needs are created.
    remove: list[str] = msgspec.field(default_factory=list)  # Fields, as paths, that are removed after that.
    meta: dict[str, str] = msgspec.field(default_factory=dict)
    # Entries of the metadata and their expressions, which see the new value. An entry that is null is removed.


class MapOperator(Operator):
    """Implements ``map``, with compiled expressions."""

    type = "map"
    short = "value"
    Options = MapOptions

    def __init__(self, options: MapOptions) -> None:
        if not (options.value or options.set or options.remove or options.meta):
            raise ValueError('no option: use {set: {total: "price * quantity"}}, or a string with an expression')
        for name in ("set", "remove", "meta"):
            if len(getattr(options, name)) > MOST:
                raise ValueError(f"{len(getattr(options, name))} fields in {name}: at most {MOST} are allowed")
        self._meta: Cell = [None]
        self._id: Cell = [None]
        self._time: Cell = [None]
        self._scope = {"$meta": self._meta, "$id": self._id, "$time": self._time}
        self._value = None if options.value is None else self._compiled(options.value, "value")
        self._set = [
            (field_path(name, "set"), self._compiled(text, f"set.{name}")) for name, text in options.set.items()
        ]
        self._remove = [field_path(name, "remove") for name in options.remove]
        self._new_meta = [(name, self._compiled(text, f"meta.{name}")) for name, text in options.meta.items()]

    def _compiled(self, text: str, what: str) -> Run:
        return expression(text, what, self._scope)

    def process(self, events: list[Event]) -> None:
        good: list[Event] = []
        for event in events:
            self._meta[0], self._id[0], self._time[0] = event.meta, event.id, event.ingest_ns / 1e9
            try:
                event.value, event.meta = self._mapped(event)
                good.append(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        self._meta[0] = self._id[0] = None
        self.emit(good)

    def _mapped(self, event: Event) -> tuple[Any, dict[str, Any]]:
        value = event.value if self._value is None else self._value(event.value)
        for names, run in self._set:
            value = with_field(value, names, run(value))
        for names in self._remove:
            value = without_field(value, names)
        meta = event.meta
        if self._new_meta:
            meta = meta.copy()
            for name, run in self._new_meta:
                found = run(value)
                if found is None:
                    meta.pop(name, None)
                else:
                    meta[name] = found
        return value, meta
