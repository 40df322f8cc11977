"""Compiles what the grammar adds to JMESPath: arithmetic, choices, and variables.

The scope of a variable is lexical. Each ``let`` has a cell for each of its variables, which contains the value while
its body is evaluated. An expression is evaluated by one thread, and never within itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from tidelog.flows.expressions.calls import Compile, Run
from tidelog.flows.expressions.declare import ExpressionError, described, number
from tidelog.flows.expressions.grammar import Node

Cell: TypeAlias = list[Any]  # of one element
Scope: TypeAlias = Mapping[str, Cell]  # the visible variables by name, with their $

_NUMBERS: Final[frozenset[type]] = frozenset((int, float))
_scope: ContextVar[Scope | None] = ContextVar("_scope", default=None)  # None: no expression is being compiled
_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip


def with_scope(scope: Scope, node: Node, compiled: Compile) -> Run:
    """Compile an expression with more variables. Their cells contain the values at each evaluation."""
    token = _scope.set({**(_scope.get() or {}), **scope})
    try:
        return compiled(node)
    finally:
        _scope.reset(token)


def whole(node: Node, variables: Scope, compiled: Compile) -> Run:
    """Compile a whole expression: ``$`` is its input, and ``variables`` are visible in addition."""
    root: Cell = [None]
    run = with_scope({**variables, "$": root}, node, compiled)
    if not _uses_root(node):
        return run

    def rooted(value: Any) -> Any:
        root[0] = value
        try:
            return run(value)
        finally:
            root[0] = None

    return rooted


def _uses_root(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    if node["type"] == "variable" and node["value"] == "$":
        return True
    return any(map(_uses_root, node["children"]))


def variable(node: Node, compiled: Compile) -> Run:  # noqa: ARG001 - the form of these functions
    scope = _scope.get() or {}
    cell = scope.get(node["value"])
    if cell is None:
        known = ", ".join(sorted(scope.keys() - {"$"}))
        raise ValueError(f"there is no variable {node['value']}" + (f"; known are {known}" if known else ""))
    return lambda value: cell[0]  # noqa: ARG005 - all closures have an argument


def let(node: Node, compiled: Compile) -> Run:
    """Compile ``let $a = b, $c = d in e``. The bindings do not see each other."""
    *given, body = node["children"]
    bound: list[tuple[Cell, Run]] = [([None], compiled(each)) for each in given]
    cells = [cell for cell, _ in bound]
    run = with_scope(dict(zip(node["value"], cells, strict=True)), body, compiled)

    def evaluated(value: Any) -> Any:
        values = [bind(value) for _, bind in bound]
        for cell, found in zip(cells, values, strict=True):
            cell[0] = found
        try:
            return run(value)
        finally:
            for cell in cells:
                cell[0] = None

    return evaluated


def arithmetic(node: Node, compiled: Compile) -> Run:
    """Compile ``a + b``. The result of two whole numbers is whole, except that of ``/``."""
    one, other = map(compiled, node["children"])
    name = node["value"]
    compute = _OPERATORS[name]

    def computed(value: Any) -> Any:
        left, right = one(value), other(value)
        if type(left) in _NUMBERS and type(right) in _NUMBERS:
            try:
                return number(compute(left, right))
            except (ArithmeticError, ValueError) as error:
                text = "division by zero" if isinstance(error, ZeroDivisionError) else str(error)
                raise ExpressionError(f"{left!r:.50} {name} {right!r:.50}: {text}") from None
        raise _wrong(name, *(("right", right) if type(left) in _NUMBERS else ("left", left)))

    return computed


def sign(node: Node, compiled: Compile) -> Run:
    """Compile ``-a`` and ``+a``."""
    run = compiled(node["children"][0])
    negative = node["value"] == "-"

    def signed(value: Any) -> Any:
        found = run(value)
        if type(found) not in _NUMBERS:
            raise _wrong(node["value"], "right", found)
        return -found if negative else found

    return signed


def _wrong(name: str, side: str, found: Any) -> ExpressionError:
    hint = "; concat() joins strings" if name == "+" and isinstance(found, str) else ""
    hint = "; coalesce(a, 0) replaces null" if found is None else hint
    return ExpressionError(f"the {side} side of {name} is {described(found)}: it must be a number{hint}")
