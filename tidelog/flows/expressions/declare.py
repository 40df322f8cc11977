"""``@function``: declares a function of expressions with the kinds of its arguments, a description, and an example.

Rule 1: An argument that is a literal is checked and converted when the expression is compiled. So ``flow check``
        reports wrong types, patterns, formats of times, and zones.
Rule 2: An argument of another kind than declared is an ``ExpressionError`` that names the function, the argument, and
        the type that it has. The same holds for null, unless the argument is optional.
Rule 3: No result is larger than LARGEST. A function whose result can be much larger than its arguments checks this
        before it computes the result.

The example is run by a test, and the documentation is generated from the declaration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.options.units import excerpt

F = TypeVar("F", bound=Callable[..., Any])

LARGEST: Final = 16 * 2**20  # characters or bytes in a result
MOST_ITEMS: Final = 1_000_000  # in a list that is larger than the arguments: it takes about 30 ms
INTEGERS: Final = 2**64  # results are below this and above its negative: larger integers have no MessagePack


class ExpressionError(ValueError):
    """An expression that can't be evaluated for a value."""


class Kind(NamedTuple):
    """What an argument can be.

    ``convert`` returns the value for the function. It raises ValueError if the argument has a right type and is not
    valid nevertheless.
    """

    name: str  # with its article, such as "a number"
    types: frozenset[type]  # empty: any
    convert: Callable[[Any], Any] | None = None


class FunctionParameter(NamedTuple):
    """One parameter of a function."""

    name: str
    kind: Kind
    optional: bool


@dataclass(frozen=True)
class Function:
    """A function of expressions."""

    name: str
    group: str  # the module that declares it
    parameters: tuple[FunctionParameter, ...]
    variadic: bool  # the last parameter accepts any number of arguments, at least one unless it is optional
    call: Callable[..., Any]
    about: str  # Markdown
    example: str
    result: Any  # of the example, with an empty object as its input
    lazy: bool  # ``call`` gets the input of the expression, and functions that evaluate the arguments
    needs: Callable[[], None] | None  # raises ValueError if a package is missing

    @property
    def least(self) -> int:
        """The number of required arguments."""
        return sum(not each.optional for each in self.parameters)

    def parameter(self, position: int) -> FunctionParameter | None:
        """Return the parameter of an argument. None: there are too many arguments."""
        if position < len(self.parameters):
            return self.parameters[position]
        return self.parameters[-1] if self.variadic else None

    def error(self, text: str) -> ExpressionError:
        return ExpressionError(f"{self.name}(): {text}")

    def wrong(self, position: int, parameter: FunctionParameter, value: Any) -> ExpressionError:
        """Return the error for an argument of another type."""
        return self.error(
            f"argument {position + 1} ({parameter.name}) is {described(value)}: it must be {parameter.kind.name}"
        )


ANY: Final = Kind("a value", frozenset())
STRING: Final = Kind("a string", frozenset((str,)))
NUMBER: Final = Kind("a number", frozenset((int, float)))
BOOLEAN: Final = Kind("true or false", frozenset((bool,)))
LIST: Final = Kind("a list", frozenset((list,)))
OBJECT: Final = Kind("an object", frozenset((dict,)))
TEXT: Final = Kind("a string or bytes", frozenset((str, bytes, bytearray)))
SCALAR: Final = Kind("a string, a number, or a boolean", frozenset((str, int, float, bool)))
EXPRESSION: Final = Kind("an &expression", frozenset())


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError(f"{number!r} is not a whole number")
    return int(number)


INTEGER: Final = Kind("a whole number", frozenset((int, float)), _whole)


def choice(**values: Any) -> Kind:
    """Return the kind of a string that is one of these names. The function gets the value of the name."""

    def convert(name: str) -> Any:
        if name not in values:
            raise ValueError(f"{excerpt(name)} is not known: use {', '.join(values)}")
        return values[name]

    return Kind(f"one of {', '.join(map(repr, values))}", frozenset((str,)), convert)


FUNCTIONS: Final[dict[str, Function]] = {}  # by name; filled by the modules that ``catalog`` imports


def function(
    *kinds: Kind, example: str, result: Any, lazy: bool = False, needs: Callable[[], None] | None = None
) -> Callable[[F], F]:
    """Declare the decorated function under its name, without underscores at its end.

    Parameters with the default None are optional. Null for one of them is the same as no argument.
    """

    def declare(call: F) -> F:
        name = call.__name__.rstrip("_")
        given = list(inspect.signature(call).parameters.values())
        if lazy:
            given = given[1:]
        assert len(given) == len(kinds), f"{name}: {len(kinds)} kinds for {len(given)} parameters"  # noqa: S101 - at import
        assert call.__doc__, f"{name} has no description"  # noqa: S101
        variadic = bool(given) and given[-1].kind is inspect.Parameter.VAR_POSITIONAL
        names = [each.name.rstrip("_") for each in given]
        if variadic:
            names[-1] = names[-1].removesuffix("s")
        optional = [each.default is not inspect.Parameter.empty for each in given]
        parameters = tuple(map(FunctionParameter, names, kinds, optional))
        about = " ".join(inspect.cleandoc(call.__doc__).split()).replace("``", "`")
        group = call.__module__.rpartition(".")[2]
        FUNCTIONS[name] = Function(name, group, parameters, variadic, call, about, example, result, lazy, needs)
        return call

    return declare


_TYPES: Final[dict[type, str]] = {
    str: "the string", bool: "the boolean", int: "the number", float: "the number", list: "the list",
    dict: "the object", bytes: "the bytes", bytearray: "the bytes",
}  # fmt: skip


def described(value: Any) -> str:
    """Return the type and the beginning of a value, for an error text."""
    if isinstance(value, NoneType):
        return "null"
    for kind, name in _TYPES.items():
        if isinstance(value, kind):
            shown = str(value).lower() if kind is bool else excerpt(value)
            return f"{name} {shown}"
    return f"{type(value).__name__} {excerpt(value)}"


def limited(size: int, most: int = LARGEST) -> None:
    """Raise ValueError if a result of this size exceeds the limit."""
    if size > most:
        raise ValueError(f"the result would have {size:,} characters or items: at most {most:,} are allowed")


def number(value: float) -> float:
    """Return a computed number. Raises ValueError if it is infinite, no number, or too large for other systems."""
    if type(value) is int:
        if -INTEGERS < value < INTEGERS:
            return value
        raise ValueError("the result has more than 64 bits")
    if value - value == 0:
        return value
    raise ValueError("the result is not a number, or infinite")
