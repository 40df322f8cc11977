"""JMESPath as closures gives what the package jmespath gives: the same result or the same kind of exception."""

from __future__ import annotations

from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows.operators import jmescompiler
from tidelog.flows.operators.jmescompiler import expression, is_true

DOCUMENT: dict[str, Any] = {
    "a": {"b": {"c": 3}, "x": None, "list": [1, 2, [3, [4]]]},
    "n": 10, "zero": 0, "one": 1, "f": 2.5, "yes": True, "no": False, "none": None,
    "s": "tea", "empty": "", "nothing": {},
    "words": ["b", "a", "c"], "numbers": [3, 1, 2.5], "mixed": [1, "a", None, True, [], {}], "none_at_all": [],
    "items": [{"n": "tea", "p": 2, "t": ["x", "y"]}, {"n": "cup", "p": 5, "t": []}, {"n": "pot", "p": 9}, 7, None],
    "people": {"ann": {"age": 30}, "bob": {"age": 40}, "cid": 1}, "odd key": 1, "\u00e9": "accent",
}  # fmt: skip

EXPRESSIONS = """
a | a.b | a.b.c | a.b.c.d | missing | missing.too | a.x.y | "odd key" | "\u00e9" | s.length | @ | @.n | a.list
a.list[0] | a.list[-1] | a.list[9] | a.list[-9] | a[0] | s[0] | a.list[2][1][0] | words[1:] | words[::-1]
words[:1] | s[1:] | words[-2:] | words[5:] | a.list[] | a.list[][] | items[].t[] | items[*].n | items[*].t
items[*].t[0] | items[*].t[*] | a[*] | people.*.age | people.* | *.age | * | *[] | n.* | items[?p > `2`]
items[?p > `2`].n | items[?n == 'tea'].t[0] | items[?t] | items[?p >= `2` && p < `9`].n | items[?!t].n
items[?n != 'tea' || p == `2`] | a[?b] | items[?p].p | [?a] | mixed[?@] | mixed[?@ == `1`] | mixed[?@ == `true`]
mixed[?@ > `0`] | mixed[?@ == null] | mixed[?!@] | items[?p > n] | n > `10` | n >= `10` | n < `10.5` | n <= `9`
n == `10` | n != `10` | n == '10' | n == f | f < n | s > 'a' | s < s | yes > no | zero == no | zero == `false`
one == yes | one == `true` | one != yes | zero == `0` | f == `2.5` | none == missing | yes > `0` | none != `null`
s == `"tea"` | a.list == `[1, 2, [3, [4]]]` | nothing == `{}` | n > s | s > n | none > `1` | words == words | n && s
none && s | empty || s | zero || s | no || none | !n | !zero | !empty | !none | !words | !none_at_all | !(n > `3`)
n > `3` && s == 'tea' | n > `30` || !yes | (n || s) && f | [n, s] | [n, [s, none]] | {n: n, s: s}
{n: n, x: a.b.c, y: [n]} | {"odd key": n} | missing.{n: n} | missing.[n] | a.{b: b, x: x} | a.[b, x] | n.{a: a}
s.[@] | items[].{n: n, p: p} | items[].[n, p] | {a: n, a: s} | `1` | `[1, {"a": 2}]` | 'text' | `"text"` | {k: `[]`}
a | b.c | a.list[*] | length(@) | a || b | items[0] || items[1] | items[0].n || 'x' | (items[*].n)[0] | items[*].n
[0] | abs(n) | abs(f) | abs(s) | abs(none_at_all) | abs(yes) | avg(numbers) | avg(none_at_all) | avg(mixed)
ceil(f) | floor(f) | contains(words, 'a') | contains(s, 'e') | contains(n, 'e') | contains(s, n) | ends_with(s, 'a')
starts_with(s, 't') | join(',', words) | join(',', numbers) | join(n, words) | join(',', none_at_all) | keys(a)
values(nothing) | keys(s) | length(s) | length(words) | length(a) | length(n) | length(none) | map(&p, items)
map(&[n, p], items) | map(&@.n, items) | max(numbers) | max(words) | max(mixed) | max(none_at_all) | min(numbers)
min(words) | max_by(people.*, &age) | max_by(items[:3], &p) | min_by(items[:3], &n) | max_by(items, &p)
sort_by(items[:3], &p)[*].n | sort_by(items, &n) | sort_by(none_at_all, &p) | merge(a, nothing) | merge(a, {b: n})
merge(a, n) | not_null(none, missing, n) | not_null(none) | reverse(words) | reverse(s) | reverse(n) | sort(words)
sort(numbers) | sort(mixed) | sort(none_at_all) | sum(numbers) | sum(none_at_all) | sum(words) | sum(items[].p)
sum(items[*].p) | to_array(n) | to_array(words) | to_number('5') | to_number(s) | to_number(yes) | to_number(f)
to_string(a) | to_string(s) | to_string(none) | type(a) | type(s) | type(n) | type(yes) | type(none) | type(words)
sum(map(&p, items[?p])) | sort_by(items[?p], &p)[-1].n | length(items[?p > `2`]) > `1` | items[?contains(n, 'o')].n
items[?length(n) == `3`] | to_string(items[0].p) == '2' | keys(people) | sort(keys(people))
""".replace("\n", " | ").split(" | ")
PIPED = ["a | b", "items[*].n | [0]", "items | [?p > `2`] | length(@)", "people.* | [*].age | max(@)", "a.b | c"]


def outcome(run: Any, document: Any) -> str:
    try:
        return repr(run(document))  # repr tells 1 from True and 1.0
    except Exception as error:  # noqa: BLE001 - the kinds are compared
        return type(error).__name__


@pytest.mark.parametrize("text", sorted({*filter(None, map(str.strip, EXPRESSIONS)), *PIPED}))
def test_same_as_the_package(text: str) -> None:
    document: Any
    for document in (DOCUMENT, DOCUMENT["a"], DOCUMENT["items"], None, 5, "text", True, [], {}):
        assert outcome(expression(text), document) == outcome(jmespath.compile(text).search, document)


NAMES = st.sampled_from(["a", "b", "c", '"d e"'])
LITERALS = st.sampled_from(
    ["`0`", "`1`", "`2.5`", "`true`", "`false`", "`null`", "'x'", "''", "`[]`", "`{}`", "`[1, 2]`", '`{"a": 1}`']
)
ONE_ARGUMENT = [
    "abs", "avg", "ceil", "floor", "keys", "length", "max", "min", "reverse", "sort", "sum", "to_array", "to_number",
    "to_string", "type", "values", "not_null", "merge",
]  # fmt: skip


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    plain = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, NAMES).map(lambda each: f"({each[0]}).{each[1]}"),
        st.tuples(inner, st.integers(-3, 3)).map(lambda each: f"({each[0]})[{each[1]}]"),
        st.tuples(inner, st.sampled_from(["[]", "[*]", ".*", "[1:]", "[::-1]", "[:2]"]), NAMES).map(
            lambda each: f"({each[0]}){each[1]}.{each[2]}"
        ),
        st.tuples(inner, st.sampled_from(["[]", "[*]", ".*", "[::2]"])).map("".join),
        st.tuples(inner, inner, inner).map(lambda each: f"({each[0]})[?{each[1]}].[{each[2]}]"),
        st.tuples(inner, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "&&", "||", "|"]), inner).map(
            lambda each: f"({each[0]}) {each[1]} ({each[2]})"
        ),
        inner.map(lambda each: f"!({each})"),
        plain.map(lambda each: f"[{each[0]}, {each[1]}]"),
        plain.map(lambda each: f"{{a: {each[0]}, b: {each[1]}}}"),
        st.tuples(st.sampled_from(ONE_ARGUMENT), inner).map(lambda each: f"{each[0]}({each[1]})"),
        plain.map(lambda each: f"contains({each[0]}, {each[1]})"),
        plain.map(lambda each: f"starts_with({each[0]}, {each[1]})"),
        plain.map(lambda each: f"join({each[0]}, {each[1]})"),
        plain.map(lambda each: f"map(&({each[0]}), {each[1]})"),
        plain.map(lambda each: f"sort_by({each[0]}, &({each[1]}))"),
        plain.map(lambda each: f"max_by({each[0]}, &({each[1]}))"),
    )


WRITTEN = st.recursive(st.one_of(NAMES, NAMES, LITERALS, st.just("@")), larger, max_leaves=8)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, 1, 2, -3, 2.5, 1.0, 0.0]), st.sampled_from(["", "x", "xy", "5"])
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["a", "b", "c", "d e"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=600, deadline=None)
@given(WRITTEN, st.lists(DOCUMENTS, min_size=1, max_size=3))
def test_same_as_the_package_for_any_expression(text: str, documents: list[Any]) -> None:
    run = expression(text)
    package = jmespath.compile(text)
    for document in documents:
        assert outcome(run, document) == outcome(package.search, document)


@given(DOCUMENTS)
def test_truth_is_the_packages(value: Any) -> None:
    assert is_true(value) == jmespath.visitor.TreeInterpreter()._is_true(value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a >", "the expression 'a >'"),
        ("a[", "the expression"),
        ("", "the expression"),
        ("legnth(a)", "there is no function legnth(); did you mean 'length'?"),
        ("length(a, b)", "length() takes 1 arguments, not 2"),
        ("not_null()", "not_null() takes at least 1 arguments, not 0"),
        ("items[?foo(@)]", "there is no function foo()"),
        ("a[::0]", "the step of a slice can't be 0"),
        ("&a", "an &expression can only be an argument of a function"),
        ("length(&a)", "argument 1 of length() can't be an &expression"),
        ("a" * 10_001, "has 10001 characters: at most 10000"),
        ("(" * 4_000 + "a" + ")" * 4_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_before_any_event(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        expression(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lists_and_objects_of_the_expression_are_new_each_time() -> None:
    run = expression("{list: `[1, {\"a\": 2}]`, text: 'x'}")
    first = run({})
    first["list"][1]["a"] = 3
    assert run({}) == {"list": [1, {"a": 2}], "text": "x"}


def test_a_kind_of_node_that_is_not_known_goes_to_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    makers = {name: make for name, make in jmescompiler.MAKERS.items() if name not in ("projection", "comparator")}
    monkeypatch.setattr(jmescompiler, "MAKERS", makers)
    assert expression("length(items[*].p) == `3` && items[0].n")(DOCUMENT) == "tea"
