"""The functions of expressions: results, errors, limits, and their page."""

from __future__ import annotations

import json
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jmespath import functions

from tests.tidelog.flows.expressionkit import error, refusal, result
from tidelog.flows import op
from tidelog.flows.expressions import declare, patterns, times
from tidelog.flows.expressions.catalog import FUNCTIONS
from tidelog.flows.expressions.declare import LARGEST
from tidelog.flows.expressions.grokpatterns import GROK
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.testing import PipelineTest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "flows-functions.md"
EXAMPLE = re.compile(r"^.*\| (`+) ?(.+?) ?\1 returns (`+) ?(.+?) ?\3 \|$", re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("coalesce(none, no, s)", False),
        ("coalesce(none, missing)", None),
        ("try(upper(a), 'x')", "x"),
        ("try(upper(s), 'x')", "TEA"),
        ("round(2.5)", 2),
        ("round(a, -1)", 10),
        ("pow(2, -1)", 0.5),
        ("to_integer(2.9)", 2),
        ("to_boolean(0)", False),
        ("trim('--a--', '-')", "a"),
        ("split('abc', '')", ["a", "b", "c"]),
        ("split('', '')", []),
        ("split('abc', '', 1)", ["a", "bc"]),
        ("split('a', 'x')", ["a"]),
        ("find_first('abc', 'x')", None),
        ("substring('abc', -2)", "bc"),
        ("substring('abc', 1, missing)", "bc"),
        ("pad_left('long', 2)", "long"),
        ("concat(s, a, f, no)", "tea72.5false"),
        ("get(o, 'x')", 1),
        ("get(list, 5, 'd')", "d"),
        ("get(none, 'x', 1)", 1),
        ('merge_deep(o, `{"x": {"y": 1}}`)', {"x": {"y": 1}}),
        ("drop(o, 'x', 'y')", {}),
        ("has(o, 'y')", False),
        ("unique(items, &(p > 0))[*].p", [1]),
        ('unique(`[{"a": 1}, {"a": 1}, 1, "1", 1.0]`)', [{"a": 1}, 1, "1", 1.0]),
        ("parse_time('2026-11-27T09:30:00.25+01:00')", 1795768200.25),
        ("parse_time('2026-11-27', missing, 'Europe/Rome')", 1795734000),
        ("format_time(parse_time('2026-07-01T10:00:00Z'), missing, 'Europe/Rome')", "2026-07-01T12:00:00+02:00"),
        ("format_time(0)", "1970-01-01T00:00:00Z"),
        ("parse_time('2026-10-25T02:30', missing, 'Europe/Rome')", 1792888200),
        ("parse_csv('')", []),
        ('parse_csv(\'a,"b\nc"\', `["x", "y"]`)', [{"x": "a", "y": "b\nc"}]),
        ("parse_logfmt(quoted)", {"a": 'x "y" z', "b": "", "d": True, "c": True}),
        ("parse_kv('a=1  b=x=y c')", {"a": "1", "b": "x=y", "c": ""}),
        ("parse_json('null')", None),
        ("regex_replace('a1b2', '[0-9]', '')", "ab"),
        ("regex_replace('ab', '(?P<x>a)', '$$${x}$1')", "$aab"),
        ("regex_replace('\u00e9a\u00e9', '', '-')", "-\u00e9-a-\u00e9-"),
        ("regex_capture(s, '(?P<n>x)')", None),
        ("regex_capture(s, '(?P<n>x)?')", {"n": None}),
        ("regex_find('\u00e9\u00e8', '.$')", "\u00e8"),
        ("regex_split('a', 'x')", ["a"]),
        ("regex_matches(s, '(?i)^TEA$')", True),
        ("grok('x', '%{INT:n}')", None),
        ("grok('n=5', 'n=%{INT:a.b:int}')", {"a": {"b": 5}}),
        ("grok('5 x', '%{INT} (?P<rest>.*)')", {"rest": "x"}),
        ("hash('', 'crc32')", "00000000"),
        ("uuid_v5('6ba7b810-9dad-11d1-80b4-00c04fd430c8', 'x') == uuid_v5('dns', 'x')", True),
        ("base64_decode('dGVh')", "tea"),
        ("base64_decode('_w-_') || 1", None),
        ("url_encode('\u00e9 /')", "%C3%A9%20%2F"),
        (
            "parse_url('http://u:p@h/')",
            {"scheme": "http", "host": "h", "port": None, "path": "/", "user": "u", "query": {}, "fragment": ""},
        ),
        ("time_parts(0).weekday", 4),
        ("index_of(list, 9)", None),
        ("any(list, &(@ > missing))", False),
        ("to_json(s)", '"tea"'),
    ],
)
def test_functions(text: str, wanted: Any) -> None:
    if wanted is None and "_w-_" in text:
        assert error(text).endswith("the result is not UTF-8: use base64_decode_bytes()")
        return
    found = result(text)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round(s)", "round(): argument 1 (number) is the string 'tea': it must be a number"),
        ("round(none)", "round(): argument 1 (number) is null: it must be a number"),
        ("round(a, f)", "round(): argument 2 (places): 2.5 is not a whole number"),
        ("upper(list)", "upper(): argument 1 (string) is the list [1, 2, 3]: it must be a string"),
        ("sqrt(no)", "sqrt(): argument 1 (number) is the boolean false: it must be a number"),
        (
            "concat(s, o)",
            "concat(): argument 2 (value) is the object {'x': 1}: it must be a string, a number, or a boolean",
        ),
        ("a + s", "the right side of + is the string 'tea': it must be a number; concat() joins strings"),
        ("missing * a", "the left side of * is null: it must be a number; coalesce(a, 0) replaces null"),
        ("-s", "the right side of - is the string 'tea': it must be a number"),
        ("a / 0", "7 / 0: division by zero"),
        ("a % 0", "7 % 0: division by zero"),
        ("1e308", ""),
        ("sqrt(-a)", "sqrt(): math domain error"),
        ("log(0)", "log(): "),
        ("to_integer(s)", "to_integer(): invalid literal for int()"),
        ("to_integer(`1e300`)", "to_integer(): the result has more than 64 bits"),
        ("parse_json('{')", "parse_json(): '{' is not JSON: "),
        ("parse_json(concat('[', 'x'))", "is not JSON"),
        ("parse_csv('a\n1,2')", "parse_csv(): row 1 has 2 fields for 1 names"),
        ("parse_time(s)", "'tea' is not a time in ISO 8601"),
        ("parse_time(s, '%Y')", "parse_time(): 'tea' does not have the format '%Y'"),
        ("parse_duration(s)", "parse_duration(): "),
        ("format_time(huge)", "format_time(): argument 1 (time): 1e+18 is not a time in seconds since 1970"),
        ("format_time(0, missing, s)", "argument 3 (zone): there is no time zone 'tea'"),
        ("format_time(0, missing, '../x')", ""),
        (
            "regex_find(s, concat('(', s))",
            "regex_find(): argument 2 (pattern): the pattern '(tea' is not valid: missing )",
        ),
        ("regex_replace(s, 't', concat('$', '1'))", "argument 3 (replacement): the pattern has no group '1'"),
        ("get(o, a)", "get(): argument 2 (key) is the number 7"),
        ("from_items(list)", "from_items(): item 0 is the number 1"),
        ("group_by(items, &p)", "group_by(): the &expression is the number 1 for an item"),
        ("map(&upper(p), items)", "upper(): argument 1 (string) is the number 1"),
        ("try(upper(a), lower(b))", "lower(): argument 1"),
        ("group_by(items, &upper(p))", "upper(): argument 1 (string) is the number 1"),
        ("range(0, `1e9`)", "range(): the result would have"),
    ],
)
def test_errors_name_the_function_and_the_argument(text: str, said: str) -> None:
    if not said:
        refusal(text)
        return
    found = error(text)
    assert said in found
    assert len(found) < 400


def test_errors_are_short_for_large_values() -> None:
    assert len(error("round(x)", {"x": "y" * 1_000_000})) < 400
    assert len(error("parse_json(x)", {"x": "y" * 1_000_000})) < 400
    assert len(error("x + 1", {"x": list(range(100_000))})) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round()", "round() takes 1 to 2 arguments, not 0"),
        ("round(a, 1, 2)", "takes 1 to 2 arguments, not 3"),
        ("upper(a, b)", "upper() takes 1 argument, not 2"),
        ("uuid(a)", "uuid() takes no arguments, not 1"),
        ("concat()", "concat() takes at least 1 argument, not 0"),
        ("upper('a', &b)", "takes 1 argument"),
        ("upper(&a)", "an argument of upper() can't be an &expression"),
        ("coalesce(&a)", "an argument of coalesce() can't be an &expression"),
        ("group_by(a, b)", "argument 2 (expression) of group_by() must be an &expression, such as &name"),
        ("round('x')", "round(): argument 1 (number) is the string 'x': it must be a number"),
        ("round(1, 2.5)", "2.5 is not a whole number"),
        ("pad_left(s, 5, 'ab')", "'ab' has 2 characters: it must have one"),
        ("hash(s, 'sha3')", "'sha3' is not known: use md5"),
        ("grok(s, '%{X}')", "there is no grok pattern X"),
        ("grok(s, '%{INT:n:bool}')", "the type 'bool' in %{INT:n:bool} is not known"),
        ("grok(s, '%{INT:n')", ""),
        ("regex_find(s, '\\1')", "RE2 has no look-around and no back references"),
        ("parse_time(s, '%d %')", "% in the format '%d %' is not a directive"),
        ("format_time(s, 'x')", ""),
        ("format_time(s, '%s')", "%s in the format '%s' is not a directive"),
        ("lwer(s)", "there is no function lwer(); did you mean 'lower'?"),
    ],
)
def test_check_refuses(text: str, said: str) -> None:
    if said:
        assert said in refusal(text)
    else:
        expression(text)


def test_every_grok_pattern_is_valid() -> None:
    for name in GROK:
        expression(f"grok(@, '%{{{name}:x}}')")("text")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("IPV4", "255.1.10.0", "256.1.1.1"),
        ("IPV6", "2001:db8::1", "12"),
        ("IP", "::1", "x"),
        ("HOSTNAME", "a-b.example.com", "-"),
        ("UUID", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("MAC", "00:1A:2b:3c:4d:5e", "00:1A"),
        ("NUMBER", "-1.5", "x"),
        ("EMAILADDRESS", "ann.b@x.it", "ann"),
        ("QS", '"a \\" b"', "a"),
        ("URI", "https://u@x.it:80/a/b?c=d", "x.it"),
        ("TIMESTAMP_ISO8601", "2026-11-27T09:30:00.123+01:00", "2026"),
        ("HTTPDATE", "27/Nov/2026:09:30:00 +0100", "27"),
        ("SYSLOGTIMESTAMP", "Nov  7 09:30:00", "x"),
        ("LOGLEVEL", "WARN", "loud"),
        ("PATH", "/var/log/x.log", "x"),
        ("WORD", "tea", "-"),
        ("DATESTAMP_RFC2822", "Fri, 27 Nov 2026 09:30:00 +0100", "Fri"),
        ("MONTH", "November", "N"),
        ("HOSTPORT", "x.it:80", "x.it"),
    ],
)
def test_grok_patterns_match_what_they_should(name: str, good: str, bad: str) -> None:
    run = expression(f"grok(@, '^%{{{name}:x}}$')")
    assert run(good) == {"x": good}
    assert run(bad) is None


def test_a_line_of_syslog() -> None:
    found = result("grok(@, '%{SYSLOGLINE}')", "Nov 27 09:30:00 web1 sshd[77]: Accepted password for ann")
    assert found == {
        "timestamp": "Nov 27 09:30:00",
        "host": "web1",
        "process": "sshd",
        "pid": 77,
        "message": "Accepted password for ann",
    }


# -- limits ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "repeat(s, n)",
        "pad_left(s, n)",
        "pad_right(s, n)",
        "replace(long, 'x', long)",
        "regex_replace(long, 'x', long)",
        "concat(m, m, m)",
        "range(0, n)",
    ],
)
def test_results_have_a_maximum_size(text: str) -> None:
    document = {"s": "ab", "n": 10**12, "long": "x" * 10_000, "m": "x" * (LARGEST // 2)}
    began = time.process_time()
    most = "1,000,000" if "range" in text else "16,777,216"
    assert f"at most {most} are allowed" in error(text, document)
    assert time.process_time() - began < 5


def test_numbers_have_a_maximum_size() -> None:
    assert "more than 64 bits" in error("n * n", {"n": 2**40})
    assert "infinite" in error("n * n", {"n": 1e300})
    assert "more than 64 bits" in error("pow(n, n)", {"n": 10**9})
    assert "more than 64 bits" in error("to_integer(n)", {"n": "9" * 5000})
    assert "more than 64 bits" in error("grok(n, '%{INT:n:int}')", {"n": "9" * 20})
    assert "infinite" in error("grok(n, '%{NUMBER:n:float}')", {"n": "9" * 400})
    assert result("round(n, p)", {"n": 1.5, "p": 10**9}) == 1.5


def test_a_hostile_text_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("regex_matches(@, '^(a+)+$')", "grok(@, '^(%{DATA}a)*$')", "regex_find_all(@, '(a*)*b')"):
        result(text, "a" * 100_000 + "!")
    for text in ("parse_logfmt(@)", "parse_kv(@)", "try(parse_csv(@), '')", "parse_query(@)"):
        result(text, 'a="' * 30_000)
    assert time.process_time() - began < 10


def test_deeply_nested_values_are_errors() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert error("merge_deep(@, @)", deep).startswith("merge_deep(): the value is nested too deeply")
    assert "parse_json(): " in error("parse_json(@)", "[" * 100_000)
    for call in ("regex_find_all(@, 'a')", "regex_split(@, 'a')", "regex_replace(@, 'a', 'b')"):
        assert "more than 10,000 matches" in error(call, "a" * 10_001)
        result(call, "a" * 10_000)


def test_without_re2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    for text in ("regex_find(s, s)", "grok(s, '%{INT:n}')"):
        assert "need the package google-re2: pip install 'tidelog[flows-regex]'" in refusal(text)
    assert result("upper(s)") == "TEA"


def test_every_function_is_documented_with_an_example_that_runs() -> None:
    for function in FUNCTIONS.values():
        found = result(function.example, {})
        assert (found, type(found)) == (function.result, type(function.result)), function.name
        assert function.about.endswith("."), function.name
        assert f"{function.name}(" in function.example


def test_the_page_is_up_to_date_and_its_examples_run() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "function_reference.py"))
    text = PAGE.read_text()
    assert script["page"](text) == text, "run scripts/function_reference.py"
    examples = EXAMPLE.findall(text)
    assert len(examples) == len(FUNCTIONS)
    for _, example, _, wanted in examples:
        assert result(example.replace("\\|", "|"), {}) == json.loads(wanted.replace("\\|", "|")), example


def test_the_page_names_the_functions_of_the_package() -> None:
    section = PAGE.read_text().partition("## Functions of JMESPath\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == set(functions.Functions.FUNCTION_TABLE)
    assert not set(functions.Functions.FUNCTION_TABLE) & set(FUNCTIONS)


@pytest.mark.parametrize(
    "code", re.findall(r"^\| (`+.+?) \| ", PAGE.read_text().partition("## Errors")[0], re.MULTILINE)
)
def test_the_syntax_on_the_page_is_valid(code: str) -> None:
    for _, text in re.findall(r"(`+) ?(.+?) ?\1(?!`)", code):
        expression(text.replace("\\|", "|"))


def test_types_in_errors_have_names() -> None:
    assert declare.described(None) == "null"
    assert declare.described({1}) == "set {1}"
    assert patterns.compiled("a").groups == 0


def test_a_time_without_a_year_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    for now, text, wanted in (
        ("2026-11-27T08:00:00", "Nov 27 09:30:00", "2026-11-27T09:30:00Z"),
        ("2026-11-27T08:00:00", "Nov 29 09:30:00", "2025-11-29T09:30:00Z"),
        ("2026-12-31T23:59:00", "Jan  1 00:10:00", "2027-01-01T00:10:00Z"),
        ("2027-01-01T00:10:00", "Dec 31 23:59:00", "2026-12-31T23:59:00Z"),
        ("2028-03-01T00:00:00", "Feb 29 12:00:00", "2028-02-29T12:00:00Z"),
    ):
        now_ns = result(f"parse_time('{now}')") * 10**9
        monkeypatch.setattr(times, "now_ns", lambda now_ns=now_ns: now_ns)
        assert result("format_time(parse_time(@, '%b %d %H:%M:%S'))", text) == wanted
    assert "does not have the format" in error("parse_time(@, '%b %d')", "Feb 30")


def test_the_clock_and_the_ids_of_a_test_are_virtual() -> None:
    found = []
    for _ in range(2):
        with PipelineTest(op("map", "{now: now(), id: uuid()}")) as test:
            test.feed({})
            test.advance(60)
            test.feed({})
            found.append(test.outputs())
    assert found[0][1]["now"] - found[0][0]["now"] == 60
    assert found[0] == found[1]
    assert found[0][0]["id"] != found[0][1]["id"]
