"""Compiles calls of the functions of the package ``jmespath``.

Results and the types of exceptions are the same as those of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jmespath import functions

from tidelog.flows.expressions.calls import Compile, Run
from tidelog.flows.expressions.catalog import FUNCTIONS
from tidelog.flows.expressions.grammar import Node
from tidelog.options.structs import nearest

_NUMBERS: Final[frozenset[type]] = frozenset((int, float))
_STRINGS: Final[frozenset[type]] = frozenset((str,))
_functions: Final[Any] = functions.Functions()


class _Expression:
    """The value of ``&expression`` for a function. The package requires this class name."""

    def __init__(self, run: Run) -> None:
        self.expression = run

    def visit(self, run: Run, value: Any) -> Any:
        return run(value)


def package_call(node: Node, compiled: Compile) -> Run:
    """Compile a call. Raises ValueError if there is no such function, or for a wrong number or kind of arguments."""
    name = node["value"]
    entry = _functions.FUNCTION_TABLE.get(name)
    if entry is None:
        known = sorted([*_functions.FUNCTION_TABLE, *FUNCTIONS], key=lambda each: each[:1] != name[:1])
        raise ValueError(f"there is no function {name}(); {nearest(name, known)}")
    signature = entry["signature"]
    children = node["children"]
    variadic = bool(signature and signature[-1].get("variadic"))
    if len(children) < len(signature) or (len(children) > len(signature) and not variadic):
        least = "at least " if variadic else ""
        raise ValueError(f"{name}() takes {least}{len(signature)} arguments, not {len(children)}")
    runs: list[Run] = []
    for place, each in enumerate(children):
        types = signature[min(place, len(signature) - 1)]["types"]
        if each["type"] == "expref":
            if "expref" not in types:
                raise ValueError(f"argument {place + 1} of {name}() can't be an &expression")
            runs.append(_constant(_Expression(compiled(each["children"][0]))))
        else:
            runs.append(compiled(each))
    work = entry["function"]
    checks = [(place, _checker(each["types"], name)) for place, each in enumerate(signature) if each["types"]]
    if len(runs) == 1:
        one = runs[0]
        check = checks[0][1] if checks else None

        def call_one(value: Any) -> Any:
            argument = one(value)
            if check is not None:
                check(argument)
            return work(_functions, argument)

        return call_one

    def call_all(value: Any) -> Any:
        arguments = [run(value) for run in runs]
        for place, check in checks:
            check(arguments[place])
        return work(_functions, *arguments)

    return call_all


def _checker(types: list[str], name: str) -> Callable[[Any], None]:
    """Return a check of one argument's type: common types here, others and all errors by the package."""
    plain = frozenset(kind for each in types if "-" not in each for kind in functions.REVERSE_TYPES_MAP[each])
    slow = _functions._type_check_single

    numbers = _NUMBERS if "array-number" in types else frozenset()
    strings = _STRINGS if "array-string" in types else frozenset()
    lists = bool(numbers or strings)

    def check(argument: Any) -> None:
        if type(argument).__name__ in plain:
            return
        if lists and type(argument) is list:
            kinds = set(map(type, argument))
            if kinds <= numbers or kinds <= strings:
                return
        slow(argument, types, name)

    return check


def _constant(given: Any) -> Run:
    return lambda value: given  # noqa: ARG005 - all closures have an argument
