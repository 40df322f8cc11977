"""The aggregate functions of windows: ``{total: {sum: amount}, orders: count}``.

The state of an aggregate is replaced with each event. All aggregates ignore nulls, except ``count`` without an
expression.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidelog.flows.operators.jmescompiler import Run, expression

LG_K: Final = 12  # 4,096 registers: a standard error of 1.6 %, at most 4 KiB


@dataclass(frozen=True)
class Aggregate:
    """One kind of aggregate."""

    first: Callable[[], Any]  # returns the initial state
    fold: Callable[[Any, Any], Any]  # (state, value) -> state; raises TypeError or ValueError
    result: Callable[[Any], Any] = lambda state: state


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.100} is not a number")
    if value != value:
        raise ValueError("NaN can't be aggregated")
    return value


def _mean(state: tuple[float, int], value: Any) -> tuple[float, int]:
    return state[0] + float(_number(value)), state[1] + 1


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def fold(state: Any, value: Any) -> Any:
        if not isinstance(value, str):
            _number(value)
        if state is None:
            return value
        if isinstance(value, str) != isinstance(state, str):
            raise TypeError(f"{value!r:.100} can't be compared with {state!r:.100}")
        return value if better(value, state) else state

    return fold


def _distinct(state: Any, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    state.update(msgspec.json.encode(value, order="sorted").decode())
    return state


def _sketch() -> Any:
    package = importlib.import_module("datasketches")
    return package.hll_sketch(LG_K, package.HLL_8)


KINDS: Final[dict[str, Aggregate]] = {
    "count": Aggregate(int, lambda state, _: state + 1),
    "sum": Aggregate(int, lambda state, value: state + _number(value)),
    "mean": Aggregate(lambda: (0.0, 0), _mean, lambda state: state[0] / state[1] if state[1] else None),
    "min": Aggregate(lambda: None, _extreme(lambda value, state: value < state)),
    "max": Aggregate(lambda: None, _extreme(lambda value, state: value > state)),
    "first": Aggregate(lambda: (), lambda state, value: state or (value,), lambda state: state[0] if state else None),
    "last": Aggregate(lambda: None, lambda _, value: value),
    "distinct": Aggregate(_sketch, _distinct, lambda state: round(state.get_estimate())),
}


class Aggregates:
    """All aggregates of one window operator. The state of a window is a list, created by ``first``."""

    def __init__(self, given: Mapping[str, str | Mapping[str, str]]) -> None:
        """Raises ValueError if a kind or an expression is invalid, or a package is missing."""
        if not given:
            raise ValueError("aggregates is empty: use for example {orders: count, total: {sum: amount}}")
        self.names = tuple(given)
        self._kinds: list[Aggregate] = []
        self._runs: list[Run | None] = []
        for name, what in given.items():
            kind, of = _read(name, what)
            if kind == "distinct":
                try:
                    importlib.import_module("datasketches")
                except ModuleNotFoundError:
                    raise ValueError(
                        f"aggregates.{name}: distinct needs the package datasketches: pip install 'tidelog[flows-all]'"
                    ) from None
            self._kinds.append(KINDS[kind])
            self._runs.append(None if of is None else expression(of, f"aggregates.{name}"))
        # a sketch is changed in place, so it is updated last, after all checks of the event
        self._places = sorted(range(len(self._kinds)), key=lambda place: self._kinds[place].first is _sketch)

    def first(self) -> list[Any]:
        return [each.first() for each in self._kinds]

    def folded(self, states: Sequence[Any], value: Any) -> list[Any]:
        """Return the states with one more event. After an exception, the event is invalid and the states are unchanged.
        """
        found = [True if run is None else run(value) for run in self._runs]
        new = list(states)
        for place in self._places:
            if found[place] is not None:
                new[place] = self._kinds[place].fold(states[place], found[place])
        return new

    def results(self, states: Sequence[Any]) -> dict[str, Any]:
        return {name: kind.result(state) for name, kind, state in zip(self.names, self._kinds, states, strict=True)}


def _read(name: str, what: str | Mapping[str, str]) -> tuple[str, str | None]:
    if isinstance(what, str):
        kind, of = what, None
    elif len(what) == 1:
        ((kind, of),) = what.items()
    else:
        raise ValueError(f"aggregates.{name} is {dict(what)!r}: use one kind, such as {{sum: amount}}")
    if kind not in KINDS:
        raise ValueError(f"aggregates.{name}: there is no aggregate {kind!r}; known are {', '.join(sorted(KINDS))}")
    if of is None and kind != "count":
        raise ValueError(f"aggregates.{name}: {kind} requires an expression, such as {{{kind}: amount}}")
    return kind, of
