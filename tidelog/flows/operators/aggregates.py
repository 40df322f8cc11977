"""The aggregates of windows and groups: ``{total: {sum: amount}, orders: count, slow: {percentile: took, at: 99}}``.

The state of an aggregate is replaced with each event, or changed in place (``AggregateKind.changes``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from tidelog.flows.operators.aggregatekinds import KINDS, AggregateKind
from tidelog.flows.operators.jmescompiler import Run, expression

Declared: TypeAlias = "str | Mapping[str, Any]"

EXAMPLE: Final = "{orders: count, total: {sum: amount}}"


class Aggregates:
    """All aggregates of one operator. The state of a window or a group is a list, created by ``first``."""

    def __init__(self, given: Mapping[str, Declared]) -> None:
        """Raises ValueError if a kind, an option or an expression is invalid, or a package is missing."""
        if not given:
            raise ValueError(f"aggregates is empty: use for example {EXAMPLE}")
        self.names = tuple(given)
        self._kinds: list[AggregateKind] = []
        self._runs: list[Run | None] = []
        for name, what in given.items():
            kind, of = _read(name, what)
            self._kinds.append(kind)
            self._runs.append(None if of is None else expression(of, f"aggregates.{name}"))
        numbers = range(len(self._kinds))
        self._replaced = [each for each in numbers if not self._kinds[each].changes]
        self._changed = [each for each in numbers if self._kinds[each].changes]  # after all checks of the event

    def first(self) -> list[Any]:
        return [each.first() for each in self._kinds]

    def folded(self, states: Sequence[Any], value: Any) -> list[Any]:
        """Return the states with one more event. After an exception, the event is invalid and the states are unchanged.
        """
        found = [True if run is None else run(value) for run in self._runs]
        new = list(states)
        for number in self._replaced:
            if found[number] is not None:
                new[number] = self._kinds[number].fold(states[number], found[number])
        if self._changed:
            changed = [each for each in self._changed if found[each] is not None]
            prepared = [self._kinds[each].prepared(found[each]) for each in changed]
            for number, one in zip(changed, prepared, strict=True):
                new[number] = self._kinds[number].fold(states[number], one)
        return new

    def merged(self, parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """Return the states of a window that consists of these parts, at least one. The parts are unchanged."""
        if len(parts) == 1:
            return parts[0]
        return [kind.merged(states) for kind, states in zip(self._kinds, zip(*parts, strict=True), strict=True)]

    def results(self, states: Sequence[Any]) -> dict[str, Any]:
        return {name: kind.result(state) for name, kind, state in zip(self.names, self._kinds, states, strict=True)}


def _read(name: str, what: Declared) -> tuple[AggregateKind, str | None]:
    """Return the kind with its options, and the expression."""
    where = f"aggregates.{name}"
    given = {what: None} if isinstance(what, str) else dict(what)
    kinds = [each for each in given if each in KINDS]
    if len(kinds) > 1 or not given:
        raise ValueError(f"{where} is {given!r}: use one kind, such as {{sum: amount}}")
    if not kinds:
        raise ValueError(
            f"{where}: there is no aggregate {next(iter(given))!r}; known are {', '.join(sorted(KINDS))}"
        )
    kind = kinds[0]
    of = given.pop(kind)
    if of is None and kind != "count":
        raise ValueError(f"{where}: {kind} requires an expression, such as {{{kind}: amount}}")
    try:
        made = KINDS[kind](given)
    except ValueError as error:
        raise ValueError(f"{where}: {kind}: {error}") from None
    if made.package:
        try:
            importlib.import_module(made.package)
        except ModuleNotFoundError:
            raise ValueError(
                f"{where}: {kind} needs the package {made.package}: pip install 'tidelog[flows-all]'"
            ) from None
    return made, of
