"""Codecs: one message's bytes as a value, and back.

A codec is made for one stream of bytes, and may remember what came before (the header of a CSV file). Values are what
JSON has, and bytes, and times where a format has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from tidelog.flows.named import Named, find
from tidelog.flows.options import Struct

CODECS: Final[dict[str, str]] = {  # name: module:class
    "json": "tidelog.flows.codecs.json:Json",
    "jsonl": "tidelog.flows.codecs.json:JsonLines",
    "string": "tidelog.flows.codecs.plain:String",
    "binary": "tidelog.flows.codecs.plain:Binary",
    "msgpack": "tidelog.flows.codecs.msgpack:Msgpack",
    "csv": "tidelog.flows.codecs.csv:Csv",
    "yaml": "tidelog.flows.codecs.yaml:Yaml",
    "influx": "tidelog.flows.codecs.influx:Influx",
    "syslog": "tidelog.flows.codecs.syslog:Syslog",
}
DEPTH: Final = 128  # dicts and lists in each other, at most: copies of a value are made by recursion


class Nothing:
    """What ``decode`` returns where a message says nothing by itself: a header, a comment."""


NOTHING: Final = Nothing()


class Codec(Protocol):
    """``delimited``: what ``encode`` returns ends with a line's end already. A codec that needs the first message of a
    stream, also where reading goes on in its middle, has ``header = True``, one that writes a first line ``begun()``,
    which says that it is there already.
    """

    delimited: ClassVar[bool]

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:
        """NOTHING: there is no event in it. ValueError: it can't be read. A codec may add to ``meta``."""

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:
        """RejectError: the value can't be written."""


class NoOptions(Struct):
    """Of a codec or an interceptor that has none."""


def codec(given: Named) -> Codec:
    """By name, or {name: options}. ValueError: what is wrong."""
    kind, options = find("codec", CODECS, given)
    made: Codec = kind(options)
    return made


def check_encoding(name: str, special: str = "") -> None:
    """Raises ValueError if Python does not know an encoding, or if ASCII and the ``special`` characters are not single
    bytes of it, or not text at all: messages are cut at bytes.
    """
    try:
        encoded = "".join(map(chr, range(128))).encode(name)
        special.encode(name)
    except (LookupError, UnicodeError) as error:
        raise ValueError(f"encoding is {name!r}: {error}") from None
    if encoded != bytes(range(128)):
        raise ValueError(f"encoding is {name!r}: it must contain ASCII, as utf-8, latin-1 and cp1252 do")


def check_depth(value: Any) -> None:
    """ValueError: a peer's value is nested too deeply."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            each
            for one in level
            if type(one) in _CONTAINERS
            for each in (one.values() if type(one) is dict else one)
            if type(each) in _CONTAINERS
        ]
        if not level:
            return
    raise ValueError(f"nested more than {DEPTH} deep")


_CONTAINERS: Final = frozenset((dict, list, tuple, set))
