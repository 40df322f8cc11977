"""Codecs and preprocessors against the quirks of files that real programs write.

One table: (options of the connector, the bytes of a file, its values). Each file is read whole, in halves and byte by
byte. None among the values stands for a message that leaves by ``err``.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows.api.event import Event
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader, PayloadWriter

BOM = b"\xef\xbb\xbf"
SKIPPABLE = b"\x5e\x2a\x4d\x18\x05\x00\x00\x00hello"
LINES = b"one\ntwo\n"
STREAM: dict[str, Any] = {"preprocessors": [{"decompress": {"stream": True}}, "separate"], "codec": "string"}
NAMES: dict[str, Any] = {"codec": {"csv": {"header": True}}}


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _stream(name: str) -> dict[str, Any]:
    return {**STREAM, "preprocessors": [{name: {"stream": True}}, "separate"]}


def _syslog(**more: Any) -> dict[str, Any]:
    return {
        "protocol": "RFC3164", "facility": "user", "severity": "notice", "timestamp": 1704067200123456000,
        "hostname": "h", "appname": "app", "procid": "7", "msgid": None, "structured_data": None, "msg": "text", **more,
    }  # fmt: skip


_OLD_LINES: list[tuple[bytes, dict[str, Any]]] = [  # without their priority
    (b"2024-01-01T00:00:00.123456+00:00 h app[7]: text", {}),
    (b"2024-01-01T01:00:00.123456+01:00 h app[7]: text", {}),
    (b"2024-01-01T01:00:00.123456+0100 h app[7]: text", {}),
    (b"2024-01-01T00:00:00.123456000Z h app[7]: text", {}),
    (b"2024-01-01T00:00:00Z h app: text", {"timestamp": 1704067200000000000, "procid": None}),
    (b"2024-01-01T00:00:00.123456Z app[7]: text", {"hostname": None}),
    (b"2024-01-01T00:00:00.123456Z 2001:db8::1 app[7]: text", {"hostname": "2001:db8::1"}),
    (b"2024-01-01T00:00:00.123456Z h postfix/smtpd[7]: text", {"appname": "postfix/smtpd"}),
    (b"2024-01-01T00:00:00.123456Z h text only", {"appname": None, "procid": None, "msg": "text only"}),
    (b"Jan  1 2024 00:00:00.123456 h app[7]: text", {}),
    (b"Jan 1 2024 00:00:00.123456: h app[7]: text", {}),
    (b"Jan  1 2024 00:00:00.123456 app[7]: text", {"hostname": None}),
]  # fmt: skip

FILES: list[tuple[dict[str, Any], bytes, list[Any]]] = [
    # byte order marks
    ({"codec": "json"}, BOM + b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
    ({"codec": "json"}, b'{"a":1}\n' + BOM + b'{"a":2}\n', [{"a": 1}, {"a": 2}]),  # two files, joined
    ({"codec": "jsonl"}, BOM + b"1\n2\n", [1, 2]),
    ({"codec": "string"}, BOM + b"a\nb\n", ["a", "b"]),
    ({"codec": "binary"}, BOM + b"a\n", [BOM + b"a"]),
    ({"codec": "csv"}, BOM + b"a,b\n", [["a", "b"]]),
    ({"codec": "csv"}, BOM + b'"a\nb",c\n', [["a\nb", "c"]]),
    (NAMES, BOM + b'"x",y\r\n1,2\r\n', [{"x": "1", "y": "2"}]),
    ({"codec": "influx"}, BOM + b"m f=1i\n", [{"measurement": "m", "tags": {}, "fields": {"f": 1}, "timestamp": None}]),
    ({"codec": "syslog"}, BOM + b"<13>text\n", [_syslog(timestamp=None, hostname=None, appname=None, procid=None)]),
    ({"codec": "yaml", "preprocessors": []}, BOM + b"a: 1\n", [{"a": 1}]),
    # line ends
    ({"codec": "string"}, b"a\r\nb\r\n\r\nc", ["a", "b", "", "c"]),
    ({"codec": "string"}, b"a\r\r\nb\rc\r", ["a\r", "b\rc"]),
    ({"codec": "string", "preprocessors": [{"separate": {"delimiter": "\n"}}]}, b"a\r\nb", ["a\r", "b"]),
    ({"codec": "json", "preprocessors": ["separate", "remove_empty"]}, b"1\r\n\r\n2\r\n", [1, 2]),
    ({"codec": "string", "max_bytes": 3}, b"abc\r\nabcd\r\nabc\r\n", ["abc", None, "abc"]),
    ({"codec": "csv"}, b"a,b\r\n\r\nc,d\r\n", [["a", "b"], ["c", "d"]]),
    # CSV: what RFC 4180 allows, and what spreadsheets write
    ({"codec": "csv"}, b'x,"l1\nl2",z\nnext,,\n', [["x", "l1\nl2", "z"], ["next", "", ""]]),
    ({"codec": "csv"}, b'x,"l1\r\n\r\nl2"\r\n', [["x", "l1\r\n\r\nl2"]]),
    ({"codec": "csv"}, b'"a ""quoted""\n""text""",b\n', [['a "quoted"\n"text"', "b"]]),
    ({"codec": "csv"}, b'a 5" disk,b\nc,d\n', [['a 5" disk', "b"], ["c", "d"]]),
    ({"codec": "csv"}, b'"",""\n""\n"last', [["", ""], [""], None]),
    ({"codec": "csv"}, b'a,b\n"open,c\nd,e\nf,g\n', [["a", "b"], None, ["d", "e"], ["f", "g"]]),
    ({"codec": "csv", "max_bytes": 10}, b'"open,c\nd,e\nf,g\nh,i\n', [None, ["d", "e"], ["f", "g"], ["h", "i"]]),
    ({"codec": "csv", "max_bytes": 4}, b"abcdefgh\na,b\n", [None, ["a", "b"]]),
    ({"codec": {"csv": {"delimiter": ";", "quote": "'"}}}, b"'a\nb';'it''s'\n", [["a\nb", "it's"]]),
    (NAMES, b'"a\nb",c\n1,2\n', [{"a\nb": "1", "c": "2"}]),
    # encodings
    ({"codec": {"string": {"encoding": "cp1252"}}}, b"\x80 5\n", ["€ 5"]),
    ({"codec": {"csv": {"encoding": "latin-1"}}}, b"caf\xe9,b\n", [["café", "b"]]),
    ({"codec": "string"}, b"caf\xe9\nb\n", [None, "b"]),
    # YAML 1.2
    (
        {"codec": "yaml", "preprocessors": []},
        (b"time: 12:30\ncountry: NO\nday: 2026-05-01\nold: 0777\noctal: 0o17\nsep: 1_000\nexp: 1e3\non: yes\n"
        b"inf: -.inf\nnone: ~\nempty:\nflag: True\nmerge: {<<: 1}\neq: =\n"),
        [{
            "time": "12:30", "country": "NO", "day": "2026-05-01", "old": 777, "octal": 15, "sep": "1_000", "exp": 1e3,
            "on": "yes", "inf": float("-inf"), "none": None, "empty": None, "flag": True, "merge": {"<<": 1}, "eq": "=",
        }],
    ),
    # compressed files
    (STREAM, gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(10_000), ["one", "two"]),
    (STREAM, gzip.compress(LINES) + bytes(512) + gzip.compress(b"three\n"), ["one", "two", "three"]),
    (STREAM, _zstd(b"one\n") + _zstd(b"two\n"), ["one", "two"]),
    (STREAM, SKIPPABLE + _zstd(LINES) + SKIPPABLE + SKIPPABLE, ["one", "two"]),
    (STREAM, b"\x50\x2a\x4d\x18\0\0\0\0" + _zstd(LINES), ["one", "two"]),
    (STREAM, b"\x50\x2a\x4d\x18\x00\x20\0\0" + bytes(0x2000) + gzip.compress(LINES), ["one", "two"]),
    (_stream("zstd"), SKIPPABLE + _zstd(b"one\n") + SKIPPABLE + _zstd(b"two\n"), ["one", "two"]),
    (_stream("gzip"), gzip.compress(LINES) + bytes(5000), ["one", "two"]),
    (_stream("zlib"), zlib.compress(b"one\n") + zlib.compress(b"two\n"), ["one", "two"]),
    # syslog times
    *(
        ({"codec": "syslog"}, b"<13>" + line + b"\n", [_syslog(**more)])
        for line, more in _OLD_LINES
    ),
    (
        {"codec": "syslog"}, b"<13>1 2024-01-01T00:00:00.123456789Z h app 7 - - text\n",
        [_syslog(protocol="RFC5424", timestamp=1704067200123456789)],
    ),
]  # fmt: skip


def _read(options: LinePayloadOptions, data: bytes, portion: int) -> list[Any]:
    reading = PayloadReader(options)
    if not reading.splits:  # the file is one message
        return [event.value for event in reading.feed(data)]
    events = [event for at in range(0, len(data), portion) for event in reading.feed(data[at : at + portion])]
    return [None if event.path == "err" else event.value for event in events + reading.end()]


@pytest.mark.parametrize(("options", "data", "values"), FILES)
def test_files_of_real_programs(options: dict[str, Any], data: bytes, values: list[Any]) -> None:
    given = LinePayloadOptions(**options)
    for portion in (len(data), len(data) // 2 + 1, 1):
        assert _read(given, data, portion) == values, portion


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_each_record_of_csv_says_which_bytes_it_took(portion: int) -> None:
    data = b'a,"b\nc"\r\n\n"open\n' + b"x" * 30 + b"\nlast"
    reading = PayloadReader(LinePayloadOptions(codec="csv", max_bytes=20))  # type: ignore[arg-type]
    found = [each for at in range(0, len(data), portion) for each in reading.split(data[at : at + portion])]
    assert sum(size for size, _ in found + reading.split_end()) == len(data)


def test_a_quote_without_an_end_takes_linear_time() -> None:
    """Each of these lines opens a quoted field, whether the line before it left one open or not."""
    data = b'a","\n' * 400_000
    reading = PayloadReader(LinePayloadOptions(codec="csv"))
    events = [event for at in range(0, len(data), 65536) for event in reading.feed(data[at : at + 65536])]
    assert len(events + reading.end()) == 400_000


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    ["NO", "12:30", "0o17", "1e3", "1_000", "~", "", " a ", "=", "<<", "2026-05-01", "0x1F", ".5", "-.inf", 'a"b\r\nc']
)


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4), max_size=5), st.integers(1, 50))
@settings(max_examples=200)
def test_csv_that_is_written_is_read_back(rows: list[list[str]], portion: int) -> None:
    """Whatever the fields contain, and wherever the portions end."""
    rows = [[each.lstrip("\ufeff") for each in row] for row in rows]
    pieces, outcomes = PayloadWriter(LinePayloadOptions(codec="csv")).batch([Event(row) for row in rows])
    assert len(set(map(str, outcomes))) <= 1
    assert _read(LinePayloadOptions(codec="csv"), b"".join(pieces), portion) == rows


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()))
@settings(max_examples=200)
def test_yaml_that_is_written_is_read_back(value: dict[str, Any]) -> None:
    """By a reader of YAML 1.2; text that looks like a number, a time or a word of YAML 1.1 stays text."""
    options = LinePayloadOptions(codec="yaml", preprocessors=[])
    pieces, _ = PayloadWriter(options).batch([Event(value)])
    assert _read(options, b"".join(pieces), 1 << 20) == [value]


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ({"csv": {"encoding": "utf-16"}}, "it must contain ASCII"),
        ({"string": {"encoding": "ebcdic"}}, "unknown encoding"),
        ({"csv": {"encoding": "ascii", "delimiter": "§"}}, "encoding is 'ascii'"),
    ],
)
def test_wrong_encodings(codec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LinePayloadOptions(codec=codec)
