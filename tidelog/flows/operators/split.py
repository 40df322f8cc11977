"""``split`` and ``unbatch``: convert an event whose value is a list to an event for each item.

The events of ``split`` share their outcome: the source is notified when all are settled, with the worst outcome.
``unbatch`` reverses ``batch``: each item gets its original event with its token, and is settled separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import TokenGroup
from tidelog.flows.operators.batch import Batched
from tidelog.flows.operators.jmescompiler import expression
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct


class SplitOptions(Struct):
    """The options of ``split``."""

    path: str | None = None
    # A JMESPath expression that returns the list. `null`: the value is the list. The short form: `split:
    # "order.items"`.
    max_items: AtLeastOne = 100_000  # Maximum number of items. An event with a longer list fails.


class SplitOperator(Operator):
    """Implements ``split``."""

    type = "split"
    short = "path"
    Options = SplitOptions

    def __init__(self, options: SplitOptions | None = None) -> None:
        options = options or SplitOptions()
        self._run = None if options.path is None else expression(options.path, "path")
        self._most = options.max_items

    def process(self, events: list[Event]) -> None:
        out: list[Event] = []
        for event in events:
            try:
                items = event.value if self._run is None else self._run(event.value)
                _look_at(items)
                if len(items) > self._most:
                    raise ValueError(f"a list of {len(items)} items: max_items is {self._most}")
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
                continue
            if items:
                out += parts(event, items)
            else:
                self.drop([event], "split: an empty list")
        self.emit(out)


class UnbatchOptions(Struct):
    """``unbatch`` has no options."""


class UnbatchOperator(Operator):
    """Implements ``unbatch``."""

    type = "unbatch"
    Options = UnbatchOptions

    def __init__(self, options: UnbatchOptions | None = None) -> None:
        pass

    def process(self, events: list[Event]) -> None:
        out: list[Event] = []
        for event in events:
            items = event.value
            try:
                _look_at(items)
            except TypeError as error:
                self.fail(event, error)
                continue
            token = event.token
            members = None
            if isinstance(token, TokenGroup) and len(token.members) == len(items):
                members = token.apart()
            if members is None:
                if items:
                    out += parts(event, items)
                else:
                    self.drop([event], "unbatch: an empty list")
                continue
            origins = token.origins if isinstance(token, Batched) else [event] * len(items)
            for value, member, origin in zip(items, members, origins, strict=True):
                one = origin.derive(value)
                one.token = member
                out.append(one)
        self.emit(out)


def _look_at(items: Any) -> None:
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"the value must be a list, and not {type(items).__name__}")


def parts(event: Event, items: Sequence[Any]) -> list[Event]:
    """Return an event for each item, at least one. They share the outcome of ``event``."""
    if len(items) > 1 and event.token is not None:
        event.token.split(len(items) - 1)
    seen: set[int] = set()
    out = []
    for item in items:
        if isinstance(item, (list, dict)):  # the expression [@, @] returns the same object twice
            value = copied(item) if id(item) in seen else item
            seen.add(id(item))
        else:
            value = item
        out.append(event.derive(value))
    return out
