"""The grammar of expressions: JMESPath, and four accepted proposals of JMESPath Community (https://jmespath.site).

    JEP-16   a + b, a - b, a * b, a / b, a // b, a % b, -a   arithmetic
    JEP-11a  let $name = a in b                              variables
    JEP-17   $                                               the input of the whole expression
    JEP-21   a ? b : c                                       a choice

Decision: the package ``jmespath`` parses, because it is maintained, and botocore requires it. The package
``jmespath-community`` implements the proposals, but its last release is of December 2023, and it is installed under the
name ``jmespath``, too, so it would replace the package that botocore uses.

Rule 1: A text that the package accepts has the same tree here.
Rule 2: Numbers are also accepted without backquotes (``n > 10``), where the package reports a syntax error. A list of
        such numbers is not: ``[1]`` is an index.
Rule 3: ``let`` and ``in`` are words only where a field can't be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias

from jmespath import exceptions, lexer, parser

Node: TypeAlias = dict[str, Any]  # {"type", "children", "value"}
Token: TypeAlias = dict[str, Any]  # {"type", "value", "start", "end"}: end is only exact for tokens without quotes

_OPERANDS: Final = frozenset((
    "unquoted_identifier", "quoted_identifier", "literal", "number", "rbracket", "rparen", "rbrace", "current", "root",
    "variable", "flatten", "star",
))  # fmt: skip
# After one of these tokens, - subtracts and * multiplies. After others, they belong to a number and are a wildcard.
_PAIRS: Final = {
    ("assign", "assign"): "eq",
    ("divide", "divide"): "div",
    ("root", "unquoted_identifier"): "variable",
}
_ARITHMETIC: Final = {"plus": "+", "minus": "-", "multiply": "*", "divide": "/", "div": "//", "modulo": "%"}


def parse(text: str) -> Node:
    """Return the tree of an expression.

    Raises JMESPathError or ValueError if it is not valid, and RecursionError if it is nested too deeply.
    """
    tree: Node = _Parser()._do_parse(text).parsed
    return tree


def path(text: str) -> list[str]:
    """Return the names in a path to a field, such as ``customer.city`` or ``"first name"``.

    Raises ValueError if it is anything else.
    """
    hint = f"{text!r} is not a path to a field: use names separated by dots, other names in double quotes"
    try:
        tree = parse(text)
    except (exceptions.JMESPathError, ValueError):
        raise ValueError(hint) from None
    nodes = tree["children"] if tree["type"] == "subexpression" else [tree]
    if any(each["type"] != "field" for each in nodes):
        raise ValueError(hint)
    return [each["value"] for each in nodes]


class _Lexer(lexer.Lexer):
    SIMPLE_TOKENS: ClassVar[dict[str, str]] = {
        **lexer.Lexer.SIMPLE_TOKENS, "+": "plus", "-": "minus", "\u2212": "minus", "\u00d7": "multiply", "/": "divide",
        "\u00f7": "divide", "%": "modulo", "=": "assign", "$": "root", "?": "question",
    }  # fmt: skip


def _tokens(text: str) -> list[Token]:
    """Return the tokens of a text. The package's lexer reads single characters, which are combined here."""
    found: list[Token] = []
    tokens: Any = _Lexer().tokenize(text)
    for token in tokens:
        last = found[-1] if found else None
        adjacent = last is not None and last["end"] == token["start"]
        operand = last is not None and last["type"] in _OPERANDS
        if last is not None and adjacent and (kind := _PAIRS.get((last["type"], token["type"]))):
            last |= {"type": kind, "value": last["value"] + token["value"], "end": token["end"]}
            if kind == "variable" and len(found) > 1 and text[found[-2]["start"] :].startswith("let"):
                found[-2]["type"] = "let"
        elif last is not None and token["type"] == "number" and adjacent and _joins(found):
            if last["type"] == "dot":
                found.pop()
            start = found[-1]["start"]
            written = text[start : token["end"]].replace("\u2212", "-")
            whole = "." not in written
            value = int(written) if whole else float(written)
            found[-1] |= {"type": "number" if whole else "literal", "value": value, "end": token["end"]}
        elif token["type"] == "star" and operand:
            found.append(token | {"type": "multiply"})
        elif token["type"] == "unquoted_identifier" and token["value"] == "in" and operand:
            found.append(token | {"type": "in"})
        else:
            found.append(token)
    return found


def _joins(found: list[Token]) -> bool:
    """Return whether a number continues the last tokens: the minus before it, or a number and a dot."""
    if found[-1]["type"] == "minus":
        return len(found) == 1 or found[-2]["type"] not in _OPERANDS
    if found[-1]["type"] != "dot" or len(found) < 2:
        return False
    return bool(found[-2]["type"] == "number" and found[-2]["end"] == found[-1]["start"])


class _Parser(parser.Parser):
    BINDING_POWER: ClassVar[dict[str, Any]] = {
        **parser.Parser.BINDING_POWER, "assign": 0, "in": 0, "let": 0, "root": 0, "variable": 0, "question": 1.5,
        "plus": 6, "minus": 6, "multiply": 7, "divide": 7, "div": 7, "modulo": 7,
    }  # fmt: skip
    _SIGN: ClassVar[float] = 8  # binding power of a sign: -a.b is -(a.b), and -a * b is (-a) * b

    # methods of the package, which its type stubs omit
    _do_parse: Callable[[str], Any]
    _expression: Callable[..., Node]
    _current_token: Callable[[], str]
    _lookahead_token: Callable[[int], Token]
    _match: Callable[[str], None]
    _raise_parse_error_for_token: Callable[[Token, str], None]

    def _parse(self, expression: str) -> Any:
        self._tokens = _tokens(expression)
        self._index = 0
        found: Any = self._expression()
        if self._current_token() != "eof":
            self._raise_parse_error_for_token(self._lookahead_token(0), "Unexpected token")
        return parser.ParsedResult(expression, found)

    def _token_nud_number(self, token: Token) -> Node:
        return {"type": "literal", "value": token["value"], "children": []}  # in the order of the package

    def _token_nud_root(self, token: Token) -> Node:  # noqa: ARG002 - the form of these methods
        return {"type": "variable", "children": [], "value": "$"}

    def _token_nud_variable(self, token: Token) -> Node:
        return {"type": "variable", "children": [], "value": token["value"]}

    def _token_nud_let(self, token: Token) -> Node:  # noqa: ARG002
        names: list[str] = []
        children: list[Node] = []
        while True:
            names.append(self._lookahead_token(0)["value"])
            self._match("variable")
            self._match("assign")
            children.append(self._expression())
            if self._current_token() != "comma":
                break
            self._match("comma")
        self._match("in")
        children.append(self._expression())
        return {"type": "let", "children": children, "value": names}

    def _token_nud_plus(self, token: Token) -> Node:  # noqa: ARG002
        return {"type": "sign", "children": [self._expression(self._SIGN)], "value": "+"}

    def _token_nud_minus(self, token: Token) -> Node:  # noqa: ARG002
        return {"type": "sign", "children": [self._expression(self._SIGN)], "value": "-"}

    def _token_led_question(self, left: Node) -> Node:
        first = self._expression()
        self._match("colon")
        # the power of a pipe, so that a following ? belongs to this part: a ? b : (c ? d : e)
        return {"type": "choice", "children": [left, first, self._expression(self.BINDING_POWER["pipe"])], "value": ""}

    def _arithmetic(self, kind: str, left: Node) -> Node:
        right = self._expression(self.BINDING_POWER[kind])
        return {"type": "arithmetic", "children": [left, right], "value": _ARITHMETIC[kind]}

    def _token_led_plus(self, left: Node) -> Node:
        return self._arithmetic("plus", left)

    def _token_led_minus(self, left: Node) -> Node:
        return self._arithmetic("minus", left)

    def _token_led_multiply(self, left: Node) -> Node:
        return self._arithmetic("multiply", left)

    def _token_led_divide(self, left: Node) -> Node:
        return self._arithmetic("divide", left)

    def _token_led_div(self, left: Node) -> Node:
        return self._arithmetic("div", left)

    def _token_led_modulo(self, left: Node) -> Node:
        return self._arithmetic("modulo", left)
