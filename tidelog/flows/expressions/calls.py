"""Compiles calls of the functions that are declared with ``@function``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tidelog.flows.expressions.declare import EXPRESSION, ExpressionError, Function, FunctionParameter
from tidelog.flows.expressions.grammar import Node

Run: TypeAlias = Callable[[Any], Any]
Compile: TypeAlias = Callable[[Node], Run]

# Errors of a function for certain arguments. Others are bugs.
_ERRORS: Final = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)


def call(function: Function, node: Node, compiled: Compile) -> Run:
    """Compile a call. Raises ValueError for a wrong number of arguments, and for invalid literals (Rule 1 there)."""
    children = node["children"]
    if function.needs is not None:
        function.needs()
    if len(children) < function.least or (children and function.parameter(len(children) - 1) is None):
        raise ValueError(f"{function.name}() takes {_count(function)}, not {len(children)}")
    if function.lazy:
        return _lazy(function, tuple(_plain(function, each, compiled) for each in children))
    runs = tuple(_argument(function, position, each, compiled) for position, each in enumerate(children))
    return _CALLS.get(len(runs), _call)(function, runs)


def _count(function: Function) -> str:
    least, most = function.least, len(function.parameters)
    if function.variadic:
        return f"at least {least} argument{'s' if least > 1 else ''}"
    if not most:
        return "no arguments"
    return f"{least} argument{'s' if least > 1 else ''}" if least == most else f"{least} to {most} arguments"


# -- arguments -------------------------------------------------------------------------------------------------
def _argument(function: Function, position: int, node: Node, compiled: Compile) -> Run:
    """Return a function that evaluates an argument, checks its type, and converts it."""
    parameter = function.parameter(position)
    assert parameter is not None  # noqa: S101 - the number of arguments is right
    if parameter.kind is EXPRESSION:
        if node["type"] != "expref":
            raise ValueError(
                f"argument {position + 1} ({parameter.name}) of {function.name}() must be an &expression, such as &name"
            )
        return _constant(compiled(node["children"][0]))
    run = _plain(function, node, compiled)
    if not parameter.kind.types:
        return run
    check = _check(function, position, parameter)
    if node["type"] == "literal" and not isinstance(node["value"], (list, dict)):
        return _constant(check(node["value"]))
    types, convert = parameter.kind.types, parameter.kind.convert

    def plain(value: Any) -> Any:
        found = run(value)
        return found if type(found) in types else check(found)

    return plain if convert is None else lambda value: check(run(value))


def _plain(function: Function, node: Node, compiled: Compile) -> Run:
    if node["type"] == "expref":
        raise ValueError(f"an argument of {function.name}() can't be an &expression")
    return compiled(node)


def _check(function: Function, position: int, parameter: FunctionParameter) -> Run:
    """Return a function that checks and converts a value. It raises ExpressionError."""
    kind = parameter.kind
    types = tuple(kind.types)
    booleans = bool in kind.types  # in Python, a boolean is an int

    def check(found: Any) -> Any:
        if found is None and parameter.optional:
            return None
        if not isinstance(found, types) or (isinstance(found, bool) and not booleans):
            raise function.wrong(position, parameter, found)
        if kind.convert is None:
            return found
        try:
            return kind.convert(found)
        except (ValueError, OverflowError) as error:
            raise function.error(f"argument {position + 1} ({parameter.name}): {error}") from None

    return check


def _constant(given: Any) -> Run:
    return lambda value: given  # noqa: ARG005 - all closures have an argument


# -- calls -----------------------------------------------------------------------------------------------------
def _lazy(function: Function, runs: tuple[Run, ...]) -> Run:
    work = function.call
    return lambda value: work(value, *runs)


def _none(function: Function, runs: tuple[Run, ...]) -> Run:  # noqa: ARG001 - the form of these functions
    work = function.call
    return lambda value: work()  # noqa: ARG005 - all closures have an argument


def _one(function: Function, runs: tuple[Run, ...]) -> Run:
    work = function.call
    (first,) = runs

    def one(value: Any) -> Any:
        argument = first(value)
        try:
            return work(argument)
        except _ERRORS as error:
            raise _named(function, error) from None

    return one


def _two(function: Function, runs: tuple[Run, ...]) -> Run:
    work = function.call
    first, second = runs

    def two(value: Any) -> Any:
        one, other = first(value), second(value)
        try:
            return work(one, other)
        except _ERRORS as error:
            raise _named(function, error) from None

    return two


def _call(function: Function, runs: tuple[Run, ...]) -> Run:
    work = function.call

    def many(value: Any) -> Any:
        arguments = [run(value) for run in runs]
        try:
            return work(*arguments)
        except _ERRORS as error:
            raise _named(function, error) from None

    return many


_CALLS: Final = {0: _none, 1: _one, 2: _two}


def _named(function: Function, error: Exception) -> ExpressionError:
    """Return an error that names the function. An error of an &expression already names one."""
    if isinstance(error, ExpressionError):
        return error
    text = "the value is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return function.error(text or type(error).__name__)
