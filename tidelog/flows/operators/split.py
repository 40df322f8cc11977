"""``split`` and ``unbatch``: convert an event whose value is a list to an event for each item.

The events of ``split`` share their outcome: the source is notified when all are settled, with the worst outcome.
``unbatch`` reverses ``batch``: each item gets its original event with its token, and is settled separately.

Rule: Items are emitted in steps, between which other tasks run. The token of an event is divided before its first item
      is emitted, so an early settlement of some items can't end it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import Settleable, TokenGroup
from tidelog.flows.operators.batch import Batched
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.slices import SlicedWork
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct

SLICE: Final = 2_000  # items in a step: 2 to 10 ms


class _ItemOperator(Operator):
    """The base class of both: emits the items of each event in steps."""

    def __init__(self) -> None:
        self._work = SlicedWork()
        self._current = 0  # events whose items have not all been emitted

    @abstractmethod
    def _items(self, event: Event) -> Iterator[Event]:
        """Divide the token of an event, and return an iterator of the events of its items. Raises any error of values.
        """

    def process(self, events: list[Event]) -> None:
        self._work.add(self.node, self._all(events))

    def _all(self, events: list[Event]) -> Iterator[None]:
        self._current = len(events)
        out: list[Event] = []
        for event in events:
            try:
                items = self._items(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self._current -= 1
                self.fail(event, error)
                continue
            for item in items:
                out.append(item)
                if len(out) >= SLICE:
                    self.emit(out)
                    out = []
                    yield
            self._current -= 1
        self.emit(out)

    def busy(self) -> bool:
        return bool(self._work)

    def kept(self) -> int:
        return self._current

    def forget(self) -> None:
        self._work.forget()


class SplitOptions(Struct):
    """The options of ``split``."""

    path: str | None = None
    # A JMESPath expression that returns the list. `null`: the value is the list. The short form: `split:
    # "order.items"`.
    max_items: AtLeastOne = 100_000  # Maximum number of items. An event with a longer list fails.


class SplitOperator(_ItemOperator):
    """Implements ``split``."""

    type = "split"
    short = "path"
    Options = SplitOptions

    def __init__(self, options: SplitOptions | None = None) -> None:
        super().__init__()
        options = options or SplitOptions()
        self._run = None if options.path is None else expression(options.path, "path")
        self._most = options.max_items

    def _items(self, event: Event) -> Iterator[Event]:
        items = event.value if self._run is None else self._run(event.value)
        _check_list(items)
        if len(items) > self._most:
            raise ValueError(f"a list of {len(items)} items: max_items is {self._most}")
        if items:
            return _parts(event, items)
        self.drop([event], "split: an empty list")
        return iter(())


class UnbatchOptions(Struct):
    """``unbatch`` has no options."""


class UnbatchOperator(_ItemOperator):
    """Implements ``unbatch``."""

    type = "unbatch"
    Options = UnbatchOptions

    def __init__(self, options: UnbatchOptions | None = None) -> None:  # noqa: ARG002 - there are none
        super().__init__()

    def _items(self, event: Event) -> Iterator[Event]:
        items = event.value
        _check_list(items)
        token = event.token
        members = None
        if isinstance(token, TokenGroup) and len(token.members) == len(items):
            members = token.apart()
        if members is not None:
            origins = token.origins if isinstance(token, Batched) else [event] * len(items)
            return _members(items, members, origins)
        if items:
            return _parts(event, items)
        self.drop([event], "unbatch: an empty list")
        return iter(())


def _check_list(items: Any) -> None:
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"the value must be a list, and not {type(items).__name__}")


def _members(items: Sequence[Any], members: Sequence[Settleable], origins: Sequence[Event]) -> Iterator[Event]:
    """Yield an event for each item, with its own token."""
    for value, member, origin in zip(items, members, origins, strict=True):
        one = origin.derive(value)
        one.token = member
        yield one


def _parts(event: Event, items: Sequence[Any]) -> Iterator[Event]:
    """Divide the token of ``event``, and return an iterator of events for its items, of which there is at least one.
    They share the outcome of ``event``.
    """
    items = _distinct(items)
    if len(items) > 1 and event.token is not None:
        event.token.split(len(items) - 1)
    return map(event.derive, items)


def _distinct(items: Sequence[Any]) -> Sequence[Any]:
    """Return the items, with a copy of each object that occurs again: the expression [@, @] returns one twice.

    All copies are made before the first item is emitted, because what follows can change it.
    """
    seen: set[int] = set()
    distinct: list[Any] | None = None
    for number, item in enumerate(items):
        if not isinstance(item, (list, dict)):
            continue
        if id(item) in seen:
            distinct = list(items) if distinct is None else distinct
            distinct[number] = copied(item)
        seen.add(id(item))
    return items if distinct is None else distinct
