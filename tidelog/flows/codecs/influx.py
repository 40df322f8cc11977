r"""``influx``: a line of the InfluxDB line protocol.

    measurement[,tag=value...] field=value[,field=value...] [timestamp]

A value has ``measurement`` (text), ``tags`` (text by name), ``fields`` (numbers, text, true or false by name) and
``timestamp`` (ns since 1970, or None). Commas, spaces and, except in measurements, = are escaped by a backslash; in
quoted text only " and the backslash. A backslash before any other character is literal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import NOTHING, encoded
from tidelog.options.structs import Struct

_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NAME: Final = re.compile(r"(?:[^\\,= \n]++|\\.)++", re.DOTALL)  # keys and values of tags, keys of fields
_MEASUREMENT: Final = re.compile(r"(?:[^\\, \n]++|\\.)++", re.DOTALL)
_TEXT: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SCALAR: Final = re.compile(r"[^, \n\"]+")
_FLOAT: Final = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?", re.ASCII)
_INTEGER: Final = re.compile(r"([+-]?\d{1,20})[iu]", re.ASCII)
_STAMP: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_BOOLEANS: Final = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), False),
}


class InfluxOptions(Struct):
    """Options of ``influx``."""

    precision: Literal["ns", "us", "ms", "s"] = "ns"  # Unit of timestamps in lines: `ns`, `us`, `ms` or `s`.


class InfluxCodec:
    """Decodes and encodes lines. A line that begins with # is a comment, without an event."""

    Options = InfluxOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: InfluxOptions) -> None:
        self._unit = _UNIT[options.precision]

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        text = str(data, "utf-8").removeprefix("\ufeff").rstrip("\r\n").strip(" ")
        if text.startswith("#"):
            return NOTHING
        found = _MEASUREMENT.match(text)
        if found is None:
            raise ValueError("the line does not begin with a measurement")
        measurement = re.sub(r"\\([, ])", r"\1", found[0])
        at = found.end()
        tags: dict[str, str] = {}
        while text[at : at + 1] == ",":
            key, at = _name(text, at + 1, "a tag's key")
            at = _equals(text, at, key)
            value, at = _name(text, at, f"the value of the tag {key!r}")
            tags[key] = value
        if text[at : at + 1] != " ":
            raise ValueError(f"a space and fields must follow the tags, at character {at}")
        at = _spaces(text, at)
        fields: dict[str, Any] = {}
        while True:
            key, at = _name(text, at, "a field's key")
            at = _equals(text, at, key)
            fields[key], at = _field(text, at, key)
            if text[at : at + 1] != ",":
                break
            at += 1
        rest = text[_spaces(text, at) :]
        if rest and (text[at] != " " or not _STAMP.fullmatch(rest)):
            raise ValueError(f"{rest[:40]!r} is not a timestamp")
        timestamp = int(rest) * self._unit if rest else None
        return {"measurement": measurement, "tags": tags, "fields": fields, "timestamp": timestamp}

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if not isinstance(value, Mapping) or not isinstance(value.get("measurement"), str):
            raise RejectError("the codec influx encodes dicts with measurement, tags, fields, timestamp")
        tags, fields = value.get("tags") or {}, value.get("fields")
        if not isinstance(tags, Mapping) or not isinstance(fields, Mapping) or not fields:
            raise RejectError("fields must be a dict with at least one field, and tags a dict")
        line = _escaped(value["measurement"], ", ", "the measurement")
        if line.startswith("#"):
            raise RejectError("a measurement that begins with # would be a comment")
        for key, each in sorted(tags.items(), key=lambda pair: str(pair[0])):
            line += f",{_escaped(key, ',= ', 'a key of a tag')}={_escaped(each, ',= ', f'the tag {key!r}')}"
        parts = [f"{_escaped(key, ',= ', 'a key of a field')}={_written(each, key)}" for key, each in fields.items()]
        line += " " + ",".join(parts)
        timestamp = value.get("timestamp")
        if timestamp is not None:
            if not isinstance(timestamp, int) or isinstance(timestamp, bool):
                raise RejectError(f"the timestamp {timestamp!r} is not an integer (ns since 1970)")
            line += f" {timestamp // self._unit}"
        return encoded(line)


def _name(text: str, at: int, what: str) -> tuple[str, int]:
    found = _NAME.match(text, at)
    if found is None:
        raise ValueError(f"{what} is missing at character {at}")
    return re.sub(r"\\([,= ])", r"\1", found[0]), found.end()


def _equals(text: str, at: int, key: str) -> int:
    if text[at : at + 1] != "=":
        raise ValueError(f"= must follow {key!r}, at character {at}")
    return at + 1


def _spaces(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


def _field(text: str, at: int, key: str) -> tuple[Any, int]:
    if found := _TEXT.match(text, at):
        return re.sub(r'\\(["\\])', r"\1", found[1]), found.end()
    found = _SCALAR.match(text, at)
    if found is None:
        raise ValueError(f"the value of the field {key!r} is missing at character {at}, or its quotes are not closed")
    given = found[0]
    if given in _BOOLEANS:
        return _BOOLEANS[given], found.end()
    if integer := _INTEGER.fullmatch(given):
        return int(integer[1]), found.end()
    if _FLOAT.fullmatch(given):
        return float(given), found.end()
    raise ValueError(f"{given[:40]!r} is not a field value: text must be in double quotes")


def _escaped(given: Any, special: str, what: str) -> str:
    if not isinstance(given, str) or not given:
        raise RejectError(f"{what} is {given!r}: it must be text, and not empty")
    if "\n" in given or given.endswith("\\"):
        raise RejectError(f"{what} is {given!r}: it can't contain a line break, or end with a backslash")
    return re.sub(f"([{special}])", r"\\\1", given)


def _written(value: Any, key: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise RejectError(f"the field {key!r} is {value}: it needs more than 64 bits")
        return f"{value}{'i' if value < 1 << 63 else 'u'}"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RejectError(f"the field {key!r} is {value}: the line protocol can't represent it")
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    raise RejectError(f"the field {key!r} is {type(value).__name__}: it must be a number, text, true or false")
