"""Templates: syntax, values, times, defaults, and escapes for destinations."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.flows import Event, Flow, FlowError, FlowFileError, RejectError, registry
from tidelog.flows.connectors.destinations import header_template, in_url, path_template, url_template
from tidelog.flows.connectors.templates import LONGEST, Template, fixed_text
from tidelog.flows.files import read_text

NOON = 1_795_780_800_000_000_000  # 2026-11-27T12:00:00Z in ns

VALUE = {
    "customer": "ann", "id": 7, "price": 2.5, "paid": True, "raw": b"xyz", "none": None, "empty": "", "day": "monday",
    "deep": {"er": "z", "a.b": "dots"}, "items": [{"sku": "tea"}, {"sku": "milk"}], "first name": "Ann", "@type": "t",
    "created": 1_767_323_045.5, "before": -0.5,
    "sent": "2026-01-02T05:04:05+02:00", "value": "v", "meta": "m", "bad": b"\xff",
}  # fmt: skip
META = {"key": "k", "headers": {"x-id": "9"}, "kafka": {"key": "kk"}}


def filled(text: str, value: Any = VALUE, meta: Any = META, at: int = NOON) -> str:
    event = Event(value, meta, 1, at)
    found = Template(text).fill(event)
    assert Template(text).fill_from(value, meta, at) == found
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{customer}", "ann"),
        ("orders-{day}", "orders-2026-11-27"),
        ("{date}/{hour}", "2026-11-27/12"),
        ("{time:%Y/%m/%d %H:%M:%S.%f}", "2026/11/27 12:00:00.000000"),
        ("{time:%G-W%V}", "2026-W48"),
        ("{value.day}-{value.value}-{value.meta}", "monday-v-m"),
        ('{"day"}{"meta"}{"value"}', "mondaymv"),
        ("{id}{price}{paid}{raw}", "72.5truexyz"),
        ("{deep.er}", "z"),
        ('{deep."a.b"}', "dots"),
        ('{"first name"}', "Ann"),
        ("{@type}", "t"),
        ("{items.1.sku}", "milk"),
        ("{meta.key}/{meta.headers.x-id}/{meta.kafka.key}", "k/9/kk"),
        ("{created:%Y-%m-%d %H}", "2026-01-02 03"),
        ("{before:%Y-%m-%d %H:%M:%S}", "1969-12-31 23:59:59"),
        ("{sent:%Y-%m-%dT%H:%M}", "2026-01-02T03:04"),
        ("{missing|unknown}{none|x}{empty|y}{meta.no|z}", "unknownxyz"),
        ("{missing|}{customer|other}", "ann"),
        ("{missing|a:b|c}", "a:b|c"),
        ("{missing:%Y|never}", "never"),
        ("{empty}", ""),
        ("{{customer}} {{{customer}}}", "{customer} {ann}"),
    ],
)
def test_a_template_is_filled(text: str, wanted: str) -> None:
    assert filled(text) == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{missing}", r"\{missing\} is missing: the value has customer, id.* and \d+ more\. For a default"),
        ("{none}", "{none} is missing"),
        ("{deep}", "is an object, not text or a number"),
        ("{items}", "is a list, not text"),
        ("{deep.er.x}", "is missing"),
        ("{items.9.sku}", "is missing"),
        ("{bad}", "is not UTF-8"),
        ("{customer:%Y}", "is 'ann', not a time"),
        ("{paid:%Y}", "not a time"),
        ("{meta.other}", "the metadata has key, headers, kafka"),
        ("{meta.other|}{meta.kafka}", "is an object"),
    ],
)
def test_an_event_without_the_value_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(RejectError, match=reason):
        filled(text)


def test_values_of_other_types() -> None:
    assert filled("{value}", "text") == "text"
    assert filled("{value}", 3) == "3"
    assert filled("{0.a}", [{"a": 1}]) == "1"
    assert filled("{at}-{at:%H}", {"at": datetime(2026, 1, 2, 3, tzinfo=UTC)}) == "2026-01-02T03:00:00+00:00-03"
    for value, has in ((None, "the value is null"), ([], "the value is a list"), ("x", "a str"), ({}, "has no fields")):
        with pytest.raises(RejectError, match=has):
            filled("{a}", value)
    with pytest.raises(RejectError, match="can't be encoded"):
        filled("{a}", {"a": "\udc80"})
    with pytest.raises(RejectError, match=f"at most {LONGEST}"):
        filled("{a}", {"a": "x" * (LONGEST + 1)})
    for number in (1e300, float("nan"), float("inf"), -1e18, 10**400):
        with pytest.raises(RejectError, match="not a time"):
            filled("{a:%Y}", {"a": number})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "a single '{'"),
        ("a}b", "a single '}'"),
        ("{}", "is not a placeholder"),
        ("{a b}", "is not a placeholder"),
        ("{a..b}", "is not a placeholder"),
        ("{a.}", "is not a placeholder"),
        ("{.a}", "is not a placeholder"),
        ('{""}', "is not a placeholder"),
        ('{"a}', "is not a placeholder"),
        ("{|x}", "is not a placeholder"),
        ("{a[0]}", "is not a placeholder"),
        ("{meta}", "name a value of the metadata"),
        ("{meta|x}", "name a value of the metadata"),
        ("{time}", r"write \{time:%H:%M\}"),
        ("{time:}", r"write|no directive"),
        ("{time:%Q}", "contains %Q; known are"),
        ("{time:%}", "contains %"),
        ("{time:Y}", "no directive"),
        ("{day:%H}", "has a format of its own"),
        ("{day.x}", r"write \{value\.day\.x\}"),
    ],
)
def test_errors_of_a_template_are_found_when_it_is_parsed(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Template(text)


def test_the_time_is_that_of_each_event() -> None:
    template = Template("{time:%H:%M:%S.%f} {hour}")
    times = [NOON, NOON + 1_000_000, NOON + 3_600_000_000_000, NOON, 0]
    found = [template.fill_from({}, {}, at) for at in times]
    assert found[:4] == [
        "12:00:00.000000 12", "12:00:00.001000 12", "13:00:00.000000 13", "12:00:00.000000 12",
    ]  # fmt: skip
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6} \d\d", found[4])  # the time of the clock


def test_fixed_texts() -> None:
    assert Template("a{{b}}").fixed == "a{b}" == fixed_text("a{{b}}")
    assert Template("{a}").fixed is None
    with pytest.raises(ValueError, match="only a sink fills placeholders"):
        fixed_text("{a}")


def test_the_documentation_names_all_options_that_are_templates() -> None:
    page = (Path(__file__).parents[3] / "docs" / "flows-connectors.md").read_text()
    section = page.partition("\n## Templates")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for name in registry.CONNECTORS:
        try:
            options: Any = registry.connector(name).Options
        except FlowError:  # its package is not installed
            continue
        for option in options.templates:
            assert any(f"`{name}`" in row and f"`{option}`" in row for row in rows), (name, option)


# -- destinations ----------------------------------------------------------------------------------------------
@given(st.text())
def test_a_value_remains_a_part_of_its_segment_of_a_url(text: str) -> None:
    try:
        found = url_template("/a/{x}/b").fill(Event({"x": text}))
    except RejectError:
        return
    assert found.count("/") == 3
    assert not set(found) & set("?#\r\n \\")


@given(st.text(), st.text())
def test_a_value_remains_a_part_of_one_name_in_a_path(one: str, two: str) -> None:
    try:
        found = path_template("../logs/{x}{y}/{y}.txt").fill(Event({"x": one, "y": two}))
    except RejectError:
        return
    first, second, *names = found.split("/")
    assert (first, second, len(names)) == ("..", "logs", 2)
    assert not {".", "..", ""} & set(names)
    assert all(len(each.encode()) <= 255 and "\0" not in each and "\n" not in each for each in names)


def test_escapes() -> None:
    assert url_template("/x?q={a}").fill(Event({"a": "1 &b=2/ä"})) == "/x?q=1%20%26b%3D2%2F%C3%A4"
    assert path_template("l/{a}").fill(Event({"a": "../100% ä\n"})) == "l/..%2F100%25 ä%0A"
    assert path_template("l/{a|x/y}").fill(Event({})) == "l/x%2Fy"
    for text, value in (("/{a}/", ".."), ("{a}", ""), ("a/{a}{b}/c", "."), ("{a}", "x" * 256), ("{a}", "ä" * 128)):
        with pytest.raises(RejectError):
            path_template(text).fill(Event({"a": value, "b": value}))
    with pytest.raises(RejectError, match="control character"):
        header_template("x {a}").fill(Event({"a": "1\r\nHost: evil"}))
    with pytest.raises(ValueError, match="the default"):
        url_template("/{a|..}")
    with pytest.raises(RejectError, match="can't be used in a URL"):
        in_url("")


# -- declarations ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("stream", {"key": "{"}, r"out\.key: '\{': a single"),
        ("stream", {"key": "a", "topic": "b"}, "key: 'city:{customer.city}'"),
        ("redis_list", {"key": "{time}"}, "no format"),
        ("redis_stream", {"key": "{a b}"}, "not a placeholder"),
        ("redis_pubsub", {"channel": "{}"}, "not a placeholder"),
        ("file", {"path": "{time:%Q}"}, r"out\.path: .*%Q"),
        ("http_client", {"url": "http://h/{a"}, "url: .*single"),
        ("http_client", {"url": "http://{h}/a"}, "only allowed in the path"),
        ("http_client", {"url": "http://h/", "headers": {"X-A": "{"}}, "headers: X-A: .*single"),
        ("elastic", {"url": "http://h", "index": "{"}, r"out\.index"),
        ("elastic", {"url": "http://h", "id_field": "a"}, "use id"),
        ("elastic", {"url": "http://h", "pipeline": "{}"}, r"out\.pipeline"),
    ],
)
def test_a_declaration_with_a_wrong_template_is_refused(kind: str, options: dict[str, Any], reason: str) -> None:
    flow = Flow("wrong", server="redis://localhost:1")
    with pytest.raises(FlowFileError, match=reason):
        flow.connector("out", kind, **options)


def test_check_reports_the_file_and_the_line() -> None:
    text = """
flows:
  f:
    connectors:
      in: {type: stream, key: "orders-{day}", group: g}
      out: {type: file, path: "a/{b", mode: append}
      cut: {type: file, path: "a/{b}", mode: truncate}
    connect: [in -> out, in -> cut]
"""
    with pytest.raises(FlowFileError) as error:
        read_text(text, server="redis://localhost:1")
    assert "out.path: 'a/{b': a single '{'" in str(error.value)
    with pytest.raises(FlowFileError) as error:
        read_text(text.replace('"a/{b"', '"a/{b}"'), server="redis://localhost:1")
    assert "in.key: 'orders-{day}': only a sink fills placeholders; write {{ and }} for braces" in str(error.value)
    assert "cut: mode: truncate can't be used with placeholders" in str(error.value)
