"""``group_by``: aggregates the items of a list separately for each key, without a time window.

Rule 1: The result of a group settles exactly its items if the list is a batch: each item is an event with its own
        token. The groups of any other list share the outcome of the event.
Rule 2: An item that can't be aggregated fails alone, as an event of its own, and affects no group.
Rule 3: A list is processed in steps, between which other tasks run.
Rule 4: A list has at most ``max_groups`` groups. Otherwise, the whole event fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import TokenGroup
from tidelog.flows.operators.aggregates import Aggregates
from tidelog.flows.operators.batch import Batched
from tidelog.flows.operators.hops import parts
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.slices import SlicedWork
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct

SLICE: Final = 2_000  # items in a step: 2 to 10 ms


class GroupByOptions(Struct):
    """The options of ``group_by``."""

    aggregates: dict[str, str | dict[str, Any]]
    # Aggregates by name: `count`, or a kind with a JMESPath expression, such as `{sum: amount}`.
    key: str | None = None  # A JMESPath expression of an item; each of its values has a group. `null`: one group.
    path: str | None = None  # A JMESPath expression that returns the list. `null`: the value is the list.
    max_groups: AtLeastOne = 10_000  # Maximum number of groups. An event with more of them fails.


class _Group:
    """The items of one key."""

    __slots__ = ("key", "numbers", "states")

    def __init__(self, key: Any, states: list[Any]) -> None:
        self.key = key
        self.states = states
        self.numbers: list[int] = []  # of its items in the list


class GroupByOperator(Operator):
    """Implements ``group_by``."""

    type = "group_by"
    Options = GroupByOptions

    def __init__(self, options: GroupByOptions) -> None:
        self._aggregates = Aggregates(options.aggregates)
        self._key = None if options.key is None else expression(options.key, "key")
        self._path = None if options.path is None else expression(options.path, "path")
        self._most = options.max_groups
        self._work = SlicedWork()
        self._current = 0  # events that are being processed

    def process(self, events: list[Event]) -> None:
        self._work.add(self.node, self._all(events))

    def _all(self, events: list[Event]) -> Iterator[None]:
        """Process a batch in steps of about SLICE items."""
        self._current = len(events)
        done = 0  # items since the last step
        for event in events:
            groups: dict[Any, _Group] = {}
            failed: dict[int, Exception] = {}
            try:
                items = event.value if self._path is None else self._path(event.value)
                if not isinstance(items, (list, tuple)):
                    raise TypeError(f"the value must be a list, and not {type(items).__name__}")
                for start in range(0, len(items), SLICE):
                    self._add(items, range(start, min(start + SLICE, len(items))), groups, failed)
                    if len(groups) > self._most:
                        raise ValueError(f"more than {self._most} groups: increase max_groups")
                    done += min(SLICE, len(items) - start)
                    if done >= SLICE:
                        done = 0
                        yield
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self._current -= 1
                self.fail(event, error)
                continue
            self._current -= 1
            if items:
                self._send(event, items, list(groups.values()), failed)
            else:
                self.drop([event], "group_by: an empty list")

    def _add(
        self, items: Sequence[Any], numbers: Iterable[int], groups: dict[Any, _Group], failed: dict[int, Exception]
    ) -> None:
        """Add items to their groups, which are in the order of their first items."""
        for number in numbers:
            item = items[number]
            try:
                key = None if self._key is None else self._key(item)
                bucket = key if type(key) is str else msgspec.json.encode(key, order="sorted")
                group = groups.get(bucket) or _Group(key, self._aggregates.first())
                group.states = self._aggregates.folded(group.states, item)
            except Exception as error:  # noqa: BLE001 - as above
                failed[number] = error
                continue
            group.numbers.append(number)
            groups[bucket] = group

    def _send(
        self, event: Event, items: Sequence[Any], groups: list[_Group], failed: dict[int, Exception]
    ) -> None:
        """Emit the results of a list, and fail its items that can't be aggregated."""
        out = []
        token = event.token
        members = parts(token) if self._path is None else None
        if members is not None and len(members) == len(items) and isinstance(token, TokenGroup):
            token.apart()
            origins = token.origins if isinstance(token, Batched) else [event] * len(items)
        else:
            members, origins = None, [event] * len(items)
            if token is not None:
                token.split(len(groups) + len(failed) - 1)
        for group in groups:
            first = origins[group.numbers[0]]
            value = {"key": group.key, "aggregates": self._aggregates.results(group.states)}
            result = Event(
                value, {"group": {"count": len(group.numbers)}},
                ingest_ns=min(origins[each].ingest_ns for each in group.numbers),
                attempt=max(origins[each].attempt for each in group.numbers), path=first.path,
                token=token if members is None else TokenGroup([members[each] for each in group.numbers]),
            )  # fmt: skip
            out.append(result)
        for number, error in failed.items():
            one = origins[number].derive(items[number])
            one.token = token if members is None else members[number]
            self.fail(one, error)
        self.emit(out)

    def busy(self) -> bool:
        return bool(self._work)

    def kept(self) -> int:
        return self._current

    def forget(self) -> None:
        self._work.forget()
