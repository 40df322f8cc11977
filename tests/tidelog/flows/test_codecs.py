"""Codecs: golden vectors both ways, what can't be read, what can't be written."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import CODECS, NOTHING, codec
from tidelog.flows.codecs.syslog import SyslogCodec as SyslogCodec
from tidelog.flows.codecs.syslog import SyslogOptions

DEEP: Any = []
for _ in range(128):
    DEEP = [DEEP]
TOO_DEEP: Any = [DEEP]
for _ in range(5000):
    TOO_DEEP = [TOO_DEEP]

NEW: dict[str, Any] = {
    "protocol": "RFC5424", "facility": "local4", "severity": "notice", "timestamp": 1065910455003000000,
    "hostname": "mymachine.example.com", "appname": "evntslog", "procid": None, "msgid": "ID47",
    "structured_data": {"exampleSDID@32473": {"iut": "3", "eventSource": 'A "quoted\\ ]'}}, "msg": "An event \u00e9",
}  # fmt: skip
INFLUX = {
    "measurement": "weather report", "tags": {"a,b": "x=y z", "loc": "us\\midwest"},
    "fields": {"t": 82.0, "n": -7, "big": (1 << 64) - 1, "s": 'a "b" \\ , c', "yes": True},
    "timestamp": 1465839830100400200,
}  # fmt: skip

# (codec, bytes, value): both ways
BOTH: list[tuple[Any, bytes, Any]] = [
    ("json", b'{"a":[1,2.5,null,true,"\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}),
    ("json", b"123456789012345678901234567890", 123456789012345678901234567890),
    ("jsonl", b'{"a":1}\n', {"a": 1}),
    ("jsonl", b"1\n2\n", [1, 2]),
    ({"jsonl": {"list": True}}, b"1\n", [1]),
    ("string", "é\n".encode(), "é\n"),
    ("string", b"", ""),
    ("binary", b"\xff\x00", b"\xff\x00"),
    ("msgpack", b"\x82\xa1a\x01\xa1b\xc4\x01\xff", {"a": 1, "b": b"\xff"}),
    ("msgpack", b"\xd6\xff\x00\x00\x00\x01", datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)),
    ("csv", b'a,"b,c",,"d""e"', ["a", "b,c", "", 'd"e']),
    ({"csv": {"columns": ["x", "y"], "delimiter": ";"}}, b"1;2,3", {"x": "1", "y": "2,3"}),
    ("yaml", "a: 1\nb:\n- x\n- é\n".encode(), {"a": 1, "b": ["x", "é"]}),
    (
        "influx",
        (
            b'weather\\ report,a\\,b=x\\=y\\ z,loc=us\\midwest t=82.0,n=-7i,big=18446744073709551615u,'
            b's="a \\"b\\" \\\\ , c",yes=true 1465839830100400200'
        ),
        INFLUX,
    ),
    (
        {"influx": {"precision": "s"}}, b"m f=1i 5",
        {"measurement": "m", "tags": {}, "fields": {"f": 1}, "timestamp": 5_000_000_000},
    ),
    (
        "syslog",
        (
            b'<165>1 2003-10-11T22:14:15.003000Z mymachine.example.com evntslog - ID47 '
            b'[exampleSDID@32473 iut="3" eventSource="A \\"quoted\\\\ \\]"] An event \xc3\xa9'
        ),
        NEW,
    ),
    (
        "syslog", b"<0>1 - - - - - -",
        {
            "protocol": "RFC5424", "facility": "kern", "severity": "emerg", "timestamp": None, "hostname": None,
            "appname": None, "procid": None, "msgid": None, "structured_data": None, "msg": None,
        },
    ),
    (
        "syslog", b'<14>1 - - - - - [a x="1" x="2"][b] ',
        {
            "protocol": "RFC5424", "facility": "user", "severity": "info", "timestamp": None, "hostname": None,
            "appname": None, "procid": None, "msgid": None, "structured_data": {"a": {"x": ["1", "2"]}, "b": {}},
            "msg": "",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "value"), BOTH)
def test_golden_messages_both_ways(name: Any, data: bytes, value: Any) -> None:
    assert codec(name).decode(data, {}) == value
    assert codec(name).encode(value, {}) == data


BARE: dict[str, Any] = {"measurement": "m", "tags": {}, "fields": {}, "timestamp": None}
# (codec, bytes, value): read, but written differently
READ: list[tuple[Any, bytes, Any]] = [
    ("json", b' {"a" : 1}\r\n', {"a": 1}),
    ("jsonl", b"1", 1),
    ("jsonl", b"\n1\n\n", 1),
    ("csv", b"a,b\r\n", ["a", "b"]),
    ("influx", b"# a comment", NOTHING),
    ("influx", b"m  f=.5,g=F   \r\n", {**BARE, "fields": {"f": 0.5, "g": False}}),
    ("yaml", b"!!set {a}", {"a"}),
]
# (codec, value, bytes): written, but read differently
WRITTEN: list[tuple[Any, Any, bytes]] = [
    ("json", math.nan, b"null"),
    ("json", b"\0", b'"AA=="'),
    ("string", {"a": 1}, b'{"a":1}'),
    ("string", b"\xff", b"\xff"),
    ("binary", "é", "é".encode()),
    ("csv", [1, None, True, {"a": 1}], b'1,,true,"{""a"":1}"'),
    ({"csv": {"columns": ["a", "b"]}}, {"b": 1}, b",1"),
    ({"csv": {"header": True}}, {"b": 1, "a": 2}, b"b,a\n1,2"),
]


@pytest.mark.parametrize(("name", "data", "value"), READ)
def test_what_is_read_as_well(name: Any, data: bytes, value: Any) -> None:
    assert codec(name).decode(data, {}) == value


@pytest.mark.parametrize(("name", "value", "data"), WRITTEN)
def test_what_is_written_as_well(name: Any, value: Any, data: bytes) -> None:
    assert codec(name).encode(value, {}) == data


UNREADABLE: list[tuple[Any, bytes]] = [
    ("json", b""), ("json", b"{"), ("json", b"1 2"), ("json", b'"\xff"'), ("json", b"NaN"), ("json", b"[" * 100_000),
    ("json", b"[" * 130 + b"]" * 130), ("json", b'{"a":' * 900 + b"1" + b"}" * 900),
    ("jsonl", b"\n"), ("jsonl", b"1\nx\n"),
    ("string", b"\xff"),
    ("msgpack", b""), ("msgpack", b"\x01\x02"), ("msgpack", b"\xdd\xff\xff\xff\xff"), ("msgpack", b"\xa1\xff"),
    ("msgpack", b"\xc7\x01\x05a"), ("msgpack", b"\x91" * 100_000), ("msgpack", b"\x91" * 130 + b"\x01"),
    ("msgpack", b"\x81\x81\x01\x02\x03"),
    ("csv", b'"a'), ("csv", b'"a"b'), ("csv", b"a\nb"), ("csv", b"\xff"), ("csv", b"x" * 200_000),
    ({"csv": {"columns": ["a"]}}, b"1,2"), ({"csv": {"header": True}}, b"a,a"),
    ("yaml", b"a: b: c"), ("yaml", b"--- 1\n--- 2\n"), ("yaml", b"[" * 100_000), ("yaml", b"[" * 130 + b"]" * 130),
    ("yaml", b"\xff"), ("yaml", b"!!python/object/apply:os.system [true]"), ("yaml", b"a: &x 1\nb: *x"),
    ("yaml", b"&a [*a]"), ("yaml", b"{[]: 1}"), ("yaml", b"\0"),
    ("influx", b""), ("influx", b"m"), ("influx", b"m "), ("influx", b"m,t f=1"), ("influx", b"m,t= f=1"),
    ("influx", b'm f="a'), ("influx", b"m f=abc"), ("influx", b"m f=1 x"), ("influx", b"m f=1 1 2"),
    ("influx", b"m f=0x1"), ("influx", b"\xff f=1"), ("influx", b'm f="a"b'), ("influx", b"m f=1,"),
    ("influx", b"m f=1i5"),
    ("influx", b"m f=" + b"9" * 100 + b"i"), ("influx", b"m f=1 " + b"9" * 5000), ("influx", b"m f=nan"),
    ("syslog", b""), ("syslog", b"hello"), ("syslog", b"<192>1 - - - - - -"), ("syslog", b"<1>1 - - - - -"),
    ("syslog", b"<1>1 yesterday - - - - -"), ("syslog", b"<1>1 2003-13-11T22:14:15Z - - - - -"),
    ("syslog", b"<1>1 - - - - - [a"), ("syslog", b'<1>1 - - - - - [a b="]'), ("syslog", b"<1>1 - - - - - [a][a]"),
    ("syslog", b"<1>1 - - - - - [a]x"), ("syslog", b"<1>1 - - - - - x"), ("syslog", b"<1>\xff"),
    ("syslog", "<²>1 - - - - - -".encode()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data"), UNREADABLE)
def test_what_cannot_be_read_is_a_value_error(name: Any, data: bytes) -> None:
    with pytest.raises(ValueError) as caught:  # and nothing else, however hostile the bytes are
        codec(name).decode(data, {})
    assert str(caught.value)


UNWRITABLE: list[tuple[Any, Any]] = [
    *((name, TOO_DEEP) for name in CODECS if name not in ("csv", "binary")),
    *((name, "\ud800") for name in CODECS if name not in ("csv", "binary", "yaml")),
    *((name, value) for name in CODECS for value in (object(), {"a": object()})),
    ("json", {(1, 2): 3}), ("msgpack", 1 << 70),
    ("binary", 5), ("binary", "\ud800"), ("csv", "x"), ("csv", ["\ud800"]),
    ({"csv": {"columns": ["a"]}}, {"b": 1}), ({"csv": {"columns": ["a"]}}, [1, 2]), ({"csv": {"header": True}}, [1]),
    ("csv", {1: 2}),
    ("influx", {}), ("influx", {"measurement": "m", "fields": {}}), ("influx", {"measurement": "", "fields": {"a": 1}}),
    *(
        ("influx", {"measurement": "m", "tags": tags, "fields": fields, "timestamp": stamp})
        for tags, fields, stamp in [
            ({}, {"a": math.inf}, None), ({}, {"a": None}, None), ({}, {"a": 1 << 64}, None),
            ({"a": ""}, {"a": 1}, None),
            ({"a": "b\\"}, {"a": 1}, None), ({"a": "b\nc"}, {"a": 1}, None), ({"a": 5}, {"a": 1}, None),
            ({}, {"a": 1}, 1.5), ({}, {"a": 1}, True),
        ]
    ),
    ("influx", {"measurement": "#m", "fields": {"a": 1}}),
    *(
        ("syslog", {**NEW, **dict(wrong)})  # type: ignore[call-overload]
        for wrong in [
            {"hostname": "a b"}, {"hostname": ""}, {"appname": "x" * 49}, {"severity": "bad"}, {"facility": "bad"},
            {"timestamp": 1.5}, {"timestamp": 1 << 80}, {"structured_data": {"a b": {}}}, {"structured_data": [1]},
            {"structured_data": {"a": {"b": 1}}}, {"protocol": "x"}, {"msg": 5}, {"msgid": "é"},
            {"protocol": "RFC3164", "appname": "a:b"},
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNWRITABLE, ids=lambda each: each if isinstance(each, str) else "value")
def test_what_cannot_be_written_is_rejected(name: Any, value: Any) -> None:
    with pytest.raises(RejectError) as caught:
        codec(name).encode(value, {})
    assert str(caught.value)


def test_the_deepest_value_that_is_read_passes_through_every_codec() -> None:
    for name in ("json", "msgpack", "yaml"):
        one = codec(name)
        assert one.decode(one.encode(DEEP, {}), {}) == DEEP


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_no_bytes_raise_anything_but_value_errors(data: bytes) -> None:
    """Whatever a peer sends: a value, or a ValueError."""
    for name in CODECS:
        for prefix in (b"", b"<13>1 - h a p m ", b"<13>", b"m,t=1 "):
            try:
                codec(name).decode(prefix + data, {})
            except ValueError:
                pass


_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=8).filter(
    lambda each: not each.endswith("\\")
)
_FIELDS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)  # fmt: skip


@given(
    _NAMES.filter(lambda each: not each.startswith("#")), st.dictionaries(_NAMES, _NAMES, max_size=3),
    st.dictionaries(_NAMES, _FIELDS, min_size=1, max_size=3), st.none() | st.integers(-(10**18), 10**18),
)  # fmt: skip
def test_any_influx_line_is_read_as_it_was_written(measurement: str, tags: Any, fields: Any, stamp: Any) -> None:
    value = {"measurement": measurement, "tags": tags, "fields": fields, "timestamp": stamp}
    one = codec("influx")
    try:
        written = one.encode(value, {})
    except RejectError:
        return
    assert one.decode(written, {}) == value, written


def test_a_csv_header_names_the_columns_and_is_no_event() -> None:
    one = codec({"csv": {"header": True}})
    assert one.decode("\ufeffa,b".encode(), {}) is NOTHING
    assert one.decode(b"1,2", {}) == {"a": "1", "b": "2"}
    given = codec({"csv": {"header": True, "columns": ["x", "y"]}})
    assert given.decode(b"a,b", {}) is NOTHING
    assert given.decode(b"1,2", {}) == {"x": "1", "y": "2"}
    writer: Any = codec({"csv": {"header": True, "columns": ["x"]}})
    assert [writer.encode([1], {}), writer.encode([2], {})] == [b"x\n1", b"2"]
    begun: Any = codec({"csv": {"header": True, "columns": ["x"]}})
    begun.begun()
    assert begun.encode([1], {}) == b"1"


def _syslog(year: int, month: int, day: int, **options: Any) -> SyslogCodec:
    now = int(datetime.datetime(year, month, day, tzinfo=datetime.UTC).timestamp()) * 1_000_000_000
    return SyslogCodec(SyslogOptions(**options), lambda: now)


@pytest.mark.parametrize(
    ("today", "line", "when"),
    [
        ((2003, 10, 12), b"<34>Oct 11 22:14:15 mymachine su[12]: failed: lonvick", "2003-10-11T22:14:15"),
        ((2004, 1, 1), b"<34>Dec 31 23:59:59 mymachine su[12]: failed: lonvick", "2003-12-31T23:59:59"),
        ((2003, 12, 31), b"<34>Jan  1 00:00:00 mymachine su[12]: failed: lonvick", "2004-01-01T00:00:00"),
        ((2026, 1, 1), b"<34>Feb 29 00:00:00 mymachine su[12]: failed: lonvick", "2024-02-29T00:00:00"),
        ((2025, 3, 1), b"<34>Feb 29 00:00:00 mymachine su[12]: failed: lonvick", "2024-02-29T00:00:00"),
    ],
)
def test_rfc_3164(today: tuple[int, int, int], line: bytes, when: str) -> None:
    one = _syslog(*today)
    value = one.decode(line, {})
    stamp = datetime.datetime.fromtimestamp(value["timestamp"] / 1e9, datetime.UTC)
    assert stamp.isoformat() == when + "+00:00"
    del value["timestamp"], value["msgid"], value["structured_data"]
    assert value == {
        "protocol": "RFC3164", "facility": "auth", "severity": "crit", "hostname": "mymachine", "appname": "su",
        "procid": "12", "msg": "failed: lonvick",
    }  # fmt: skip
    assert one.encode(one.decode(line, {}), {}) == line


@pytest.mark.parametrize(
    ("line", "msg"),
    [(b"<13>anything", "anything"), (b"<13>Oct 45 22:14:15 h t: x", "Oct 45 22:14:15 h t: x"), (b"<13>", "")],
)
def test_rfc_3164_without_a_header(line: bytes, msg: str) -> None:
    value = codec("syslog").decode(line, {})
    assert (value["protocol"], value["msg"], value["timestamp"], value["hostname"]) == ("RFC3164", msg, None, None)


def test_the_examples_of_rfc_5424() -> None:
    one = codec("syslog")
    line = b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed"
    first = one.decode(line, {})
    assert (first["msg"], first["appname"], first["structured_data"]) == ("'su root' failed", "su", None)
    second = one.decode(b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time.", {})
    assert second["timestamp"] == 1061727255000003000
    third = one.decode(b'<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [a@1 iut="3"][b@1 class="high"]', {})
    assert (third["structured_data"], third["msg"]) == ({"a@1": {"iut": "3"}, "b@1": {"class": "high"}}, None)


def test_every_codec_says_unknown_options() -> None:
    for name in CODECS:
        with pytest.raises(ValueError, match="unknown option 'nonsense'"):
            codec({name: {"nonsense": 1}})
    with pytest.raises(ValueError, match="did you mean 'json'"):
        codec("jsn")
    with pytest.raises(ValueError, match="takes options by name"):
        codec({"json": 5})
    with pytest.raises(ValueError, match="one character"):
        codec({"csv": {"delimiter": ";;"}})
