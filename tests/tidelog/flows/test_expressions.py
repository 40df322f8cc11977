"""The extensions of the grammar of expressions: arithmetic, variables, choices, and numbers without backquotes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidelog.flows.expressionkit import error, refusal, result
from tidelog.flows.operators.jmescompiler import canonical, expression, truth


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a + b", 9),
        ("a-b", 5),
        ("a -1", 6),
        ("a - -1", 8),
        ("-a + b", -5),
        ("- f", -2.5),
        ("+a", 7),
        ("a * b", 14),
        ("a / b", 3.5),
        ("a // b", 3),
        ("a % b", 1),
        ("a * b / b * b", 14.0),
        ("a + b * 3 - 1", 12),
        ("(a + b) * 3", 27),
        ("a\u00d7b", 14),
        ("a\u00f7b", 3.5),
        ("a\u2212b", 5),
        ("-o.x", -1),
        ("`2` * `3`", 6),
        ("2 * 1.25", 2.5),
        ("list[-1] * 2", 6),
        ("list[*] | [0] - 1", 0),
        ("a + b > 8", True),
        ("a > 6 && b < 3", True),
        ("a == -7", False),
        ("sum(list) / length(list)", 2.0),
        ("list[?@ > 1.5]", [2, 3]),
        ("items[?p > $.limit].n", ["pot"]),
        ("map(&(@ * 2), list)", [2, 4, 6]),
        ("{x: a + 1, y: -1.05}", {"x": 8, "y": -1.05}),
        ("[a, 1.5]", [7, 1.5]),
        ("a > 5 ? 'large' : 'small'", "large"),
        ("no ? 1 : none ? 2 : 3", 3),
        ("no || none ? 1 : 2 | @ + 1", 3),
        ("s ? {x: a} : o", {"x": 7}),
        ("list[?@ > 1 ? `true` : `false`]", [2, 3]),
        ("let $x = a, $y = b in $x * $y", 14),
        ("let $x = a in let $x = b, $y = $x in [$x, $y]", [2, 7]),
        ("let $let = in in let + $let", 3),
        ("let $x = limit in items[?p > $x].n", ["pot"]),
        ("items[*].[$.a, p]", [[7, 1], [7, 5]]),
        ("let.in", None),
        ("in", 2),
        ("o.* | [0] * 2", 2),
        ("list[] | [0]", 1),
        ("1.50", 1.5),
        ("10", 10),
        ("a[0]", None),
        ("`[1, 2]`[1] * 2", 4),
    ],
)
def test_grammar(text: str, wanted: Any) -> None:
    found = result(text)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    "text",
    [
        "a +",
        "* 2 2",
        "1 2",
        "[1, 2]",
        "a[1.5]",
        "let $x = 1",
        "let x = 1 in x",
        "a ? b",
        "a = b",
        "% a",
        "a $ b",
        "1.2.3",
        "a..b",
        "a - - ",
    ],
)
def test_invalid_syntax_is_refused(text: str) -> None:
    assert text[:3] in refusal(text)


def test_a_variable_must_be_known_and_ends_with_its_expression() -> None:
    assert refusal("$x").endswith("there is no variable $x")
    assert "there is no variable $x; known are $y" in refusal("let $y = 1 in $x")
    assert "there is no variable $x" in refusal("[let $x = 1 in $x, $x]")
    run = expression("let $x = a in $x + 1")
    with pytest.raises(ValueError, match="null"):
        run({})
    assert run({"a": 1}) == 2


def test_literals_are_recognized_without_backquotes() -> None:
    assert truth("5") is True
    assert canonical("n > 10") == canonical("n > `10`")


NUMBERS = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6).map(lambda number: round(number, 3)))
# Rounded, so that a division by the smallest numbers is not infinite, which is an error of an expression.


@given(st.lists(NUMBERS, min_size=2, max_size=6), st.data())
def test_arithmetic_is_that_of_python(numbers: list[float], data: st.DataObject) -> None:
    operators = [data.draw(st.sampled_from("+-*/%")) for _ in numbers[1:]]
    names = [f"n{number}" for number in range(len(numbers))]
    text = names[0] + "".join(f" {operator} {name}" for operator, name in zip(operators, names[1:], strict=True))
    document = dict(zip(names, numbers, strict=True))
    try:
        wanted = eval(text, {}, document)  # the oracle: the same precedence
    except ZeroDivisionError:
        assert "division by zero" in error(text, document)
    else:
        assert result(text, document) == wanted
