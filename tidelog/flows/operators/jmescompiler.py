"""Compiles JMESPath expressions, with the grammar and the functions of ``flows.expressions``, to closures.

Decision: the package ``jmespath`` only parses. Its interpreter looks up a method for each node of the tree at each
evaluation, so the tree is converted once to nested functions.

Rule 1: For what the package knows, results and the types of exceptions are the same as those of the package. Tests
        compare the two.
Rule 2: Errors that are independent of the value are raised by ``expression``, and not at each evaluation: invalid
        syntax, an unknown function or variable, a wrong number of arguments, a literal that is no valid argument, a
        slice with step 0, an ``&expression`` in the wrong place.
Rule 3: A list or object literal is a new object in each result, so changing one event's value does not change another
        one.
Rule 4: Unknown kinds of nodes are evaluated by the package's interpreter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from jmespath import visitor
from jmespath.exceptions import JMESPathError

from tidelog.flows.api.event import copied
from tidelog.flows.expressions import nodes
from tidelog.flows.expressions.calls import Run as Run
from tidelog.flows.expressions.calls import call
from tidelog.flows.expressions.catalog import FUNCTIONS
from tidelog.flows.expressions.grammar import Node, parse
from tidelog.flows.expressions.packagecalls import package_call

LONGEST: Final = 10_000  # maximum number of characters in an expression

_NO_VARIABLES: Final[nodes.Scope] = {}
_NUMBERS: Final[frozenset[type]] = frozenset((int, float))
_interpreter: Final[Any] = visitor.TreeInterpreter()
_equals: Final[Callable[[Any, Any], bool]] = visitor._equals  # type: ignore[attr-defined]
_comparable: Final[Callable[[Any], bool]] = visitor._is_comparable  # type: ignore[attr-defined]
_is_number: Final[Callable[[Any], bool]] = visitor._is_actual_number  # type: ignore[attr-defined]
_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt, "gt": operator.gt, "lte": operator.le, "gte": operator.ge,
}  # fmt: skip


def expression(text: str, what: str = "the expression", variables: nodes.Scope = _NO_VARIABLES) -> Run:
    """Compile an expression to a function.

    ``variables`` are cells by name, with its ``$``. They contain the values of these variables at each evaluation.
    Raises ValueError if the expression is invalid; the text begins with ``what``. The function raises ValueError
    (``JMESPathError``, ``ExpressionError``) if a function of the expression gets an invalid value, and TypeError if a
    number is compared with a string.
    """
    if not isinstance(text, str):
        raise ValueError(f"{what} is {text!r}: a JMESPath expression is a string")
    if len(text) > LONGEST:
        raise ValueError(f"{what} has {len(text)} characters: at most {LONGEST} are allowed")
    try:
        return nodes.whole(parse(text), variables, _compiled)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except (JMESPathError, ValueError) as error:
        raise ValueError(f"{what} {text!r}: {' '.join(str(error).split())}") from None


def truth(text: str) -> bool | None:
    """Return whether a valid expression is true for all values or for none. None: it depends on the value.

    Only an expression that is a single literal is recognized.
    """
    tree = parse(text)
    return is_true(tree["value"]) if tree["type"] == "literal" else None


def canonical(text: str) -> str:
    """Return a text that is equal for valid expressions that differ only in spaces and parentheses."""
    try:
        return repr(parse(text))
    except RecursionError:
        return text


def is_true(value: Any) -> bool:
    """Return whether a value is true in JMESPath: not null, false, or an empty string, list or object. So 0 is true."""
    if value is True:
        return True
    if value is None or value is False:
        return False
    kind = type(value)
    if kind is str or kind is list or kind is dict:
        return bool(value)
    if kind is int or kind is float:
        return True
    return not (value == "" or value == [] or value == {})


def _compiled(node: Node) -> Run:
    make = MAKERS.get(node["type"])
    if make is None:
        return lambda value: _interpreter.visit(node, value)
    return make(node)


# -- fields ----------------------------------------------------------------------------------------------------
def _field(node: Node) -> Run:
    name = node["value"]

    def field(value: Any) -> Any:
        try:
            return value.get(name)
        except AttributeError:
            return None

    return field


def _chain(node: Node) -> Run:
    """Compile a sequence: ``a.b``, ``a[0]``, ``a | b``."""
    children = node["children"]
    if all(each["type"] == "field" for each in children):
        names = tuple(each["value"] for each in children)

        def fields(value: Any) -> Any:
            for name in names:
                try:
                    value = value.get(name)
                except AttributeError:
                    value = None
            return value

        return fields
    runs = tuple(_compiled(each) for each in children if each["type"] not in ("identity", "current"))
    if len(runs) == 1:
        return runs[0]

    def chain(value: Any) -> Any:
        for run in runs:
            value = run(value)
        return value

    return chain


def _same(node: Node) -> Run:  # noqa: ARG001 - all compilers have an argument
    return lambda value: value


def _literal(node: Node) -> Run:
    literal = node["value"]
    if isinstance(literal, (list, dict)):
        return lambda value: copied(literal)  # noqa: ARG005 - all closures have an argument
    return _constant(literal)


def _constant(given: Any) -> Run:
    return lambda value: given  # noqa: ARG005 - all closures have an argument


def _index(node: Node) -> Run:
    number = node["value"]

    def index(value: Any) -> Any:
        if not isinstance(value, list):
            return None
        try:
            return value[number]
        except IndexError:
            return None

    return index


def _slice(node: Node) -> Run:
    part = slice(*node["children"])
    if part.step == 0:
        raise ValueError("the step of a slice can't be 0")
    return lambda value: value[part] if isinstance(value, list) else None


# -- comparisons and logic -------------------------------------------------------------------------------------
def _comparator(node: Node) -> Run:
    left, right = node["children"]
    name = node["value"]
    if name not in _ORDER:
        return _equality(left, right, name == "ne")
    compare = _ORDER[name]
    one = _compiled(left)
    if right["type"] == "literal" and type(right["value"]) in _NUMBERS:
        limit = right["value"]

        def against_number(value: Any) -> Any:
            found = one(value)
            if type(found) in _NUMBERS or _comparable(found):
                return compare(found, limit)
            return None

        return against_number
    other = _compiled(right)

    def ordered(value: Any) -> Any:
        first, second = one(value), other(value)
        if _comparable(first) and _comparable(second):
            return compare(first, second)
        return None

    return ordered


def _equality(left: Node, right: Node, negated: bool) -> Run:
    one = _compiled(left)
    if right["type"] == "literal":
        wanted = right["value"]
        # 0 and false, and 1 and true, are different, unlike in Python
        plain = not isinstance(wanted, bool) and not (_is_number(wanted) and wanted in (0, 1))
        if plain and negated:
            return lambda value: one(value) != wanted
        if plain:
            return lambda value: one(value) == wanted
        if negated:
            return lambda value: not _equals(one(value), wanted)
        return lambda value: _equals(one(value), wanted)
    other = _compiled(right)
    if negated:
        return lambda value: not _equals(one(value), other(value))
    return lambda value: _equals(one(value), other(value))


def _or(node: Node) -> Run:
    one, other = map(_compiled, node["children"])

    def either(value: Any) -> Any:
        found = one(value)
        return found if is_true(found) else other(value)

    return either


def _and(node: Node) -> Run:
    one, other = map(_compiled, node["children"])

    def both(value: Any) -> Any:
        found = one(value)
        return other(value) if is_true(found) else found

    return both


def _not(node: Node) -> Run:
    one = _compiled(node["children"][0])

    def negation(value: Any) -> Any:
        found = one(value)
        return False if _is_number(found) else not found  # numbers are true, including 0

    return negation


def _choice(node: Node) -> Run:
    condition, one, other = map(_compiled, node["children"])
    return lambda value: one(value) if is_true(condition(value)) else other(value)


# -- projections -----------------------------------------------------------------------------------------------
def _projection(node: Node) -> Run:
    base, each = map(_compiled, node["children"])

    def projection(value: Any) -> Any:
        found = base(value)
        if not isinstance(found, list):
            return None
        return [one for element in found if (one := each(element)) is not None]

    return projection


def _values(node: Node) -> Run:
    base, each = map(_compiled, node["children"])

    def values(value: Any) -> Any:
        found = base(value)
        try:
            elements = found.values()
        except AttributeError:
            return None
        return [one for element in elements if (one := each(element)) is not None]

    return values


def _filter(node: Node) -> Run:
    base, each, condition = map(_compiled, node["children"])

    def filtered(value: Any) -> Any:
        found = base(value)
        if not isinstance(found, list):
            return None
        return [one for element in found if is_true(condition(element)) and (one := each(element)) is not None]

    return filtered


def _flatten(node: Node) -> Run:
    base = _compiled(node["children"][0])

    def flatten(value: Any) -> Any:
        found = base(value)
        if not isinstance(found, list):
            return None
        merged: list[Any] = []
        for element in found:
            if isinstance(element, list):
                merged.extend(element)
            else:
                merged.append(element)
        return merged

    return flatten


# -- list and object literals ----------------------------------------------------------------------------------
def _list(node: Node) -> Run:
    runs = tuple(map(_compiled, node["children"]))
    return lambda value: None if value is None else [run(value) for run in runs]


def _object(node: Node) -> Run:
    children = [(each["value"], each["children"][0]) for each in node["children"]]
    pairs = tuple((key, _compiled(each)) for key, each in children)

    def general(value: Any) -> Any:
        return None if value is None else {key: run(value) for key, run in pairs}

    if any(each["type"] != "field" for _, each in children):
        return general
    names = tuple((key, each["value"]) for key, each in children)

    def picked(value: Any) -> Any:
        if type(value) is not dict:
            return general(value)
        get = value.get
        return {key: get(name) for key, name in names}

    return picked


# -- functions -------------------------------------------------------------------------------------------------
def _function(node: Node) -> Run:
    function = FUNCTIONS.get(node["value"])
    return package_call(node, _compiled) if function is None else call(function, node, _compiled)


def _no_expref(node: Node) -> Run:  # noqa: ARG001 - all compilers have an argument
    raise ValueError("an &expression can only be an argument of a function")


MAKERS: Final[dict[str, Callable[[Node], Run]]] = {
    "field": _field,
    "subexpression": _chain,
    "index_expression": _chain,
    "pipe": _chain,
    "identity": _same,
    "current": _same,
    "literal": _literal,
    "index": _index,
    "slice": _slice,
    "comparator": _comparator,
    "or_expression": _or,
    "and_expression": _and,
    "not_expression": _not,
    "projection": _projection,
    "value_projection": _values,
    "filter_projection": _filter,
    "flatten": _flatten,
    "multi_select_list": _list,
    "multi_select_dict": _object,
    "function_expression": _function,
    "expref": _no_expref,
    "choice": _choice,
    "arithmetic": lambda node: nodes.arithmetic(node, _compiled),
    "sign": lambda node: nodes.sign(node, _compiled),
    "let": lambda node: nodes.let(node, _compiled),
    "variable": lambda node: nodes.variable(node, _compiled),
}
