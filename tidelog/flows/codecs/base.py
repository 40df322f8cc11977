"""Codecs: encode a value as the bytes of one message, and decode it.

Each stream of bytes has its own codec object, which can keep state between messages (such as the header of a CSV file).
Values have the types of JSON, and also bytes, and times in formats that have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from tidelog.flows.api.errors import RejectError
from tidelog.flows.registry import Named, component
from tidelog.options.structs import Struct

CODECS: Final[dict[str, str]] = {  # name: module:class
    "json": "tidelog.flows.codecs.json:JsonCodec",
    "jsonl": "tidelog.flows.codecs.json:JsonLinesCodec",
    "string": "tidelog.flows.codecs.plain:StringCodec",
    "binary": "tidelog.flows.codecs.plain:BinaryCodec",
    "msgpack": "tidelog.flows.codecs.msgpack:MsgpackCodec",
    "csv": "tidelog.flows.codecs.csv:CsvCodec",
    "yaml": "tidelog.flows.codecs.yaml:YamlCodec",
    "influx": "tidelog.flows.codecs.influx:InfluxCodec",
    "syslog": "tidelog.flows.codecs.syslog:SyslogCodec",
}
DEPTH: Final = 128  # maximum nesting of dicts and lists, because values are copied recursively


class Nothing:
    """The result of ``decode`` for a message without an event, such as a header or a comment."""


NOTHING: Final = Nothing()


class MessageCodec(Protocol):
    """Converts between values and messages.

    A codec that needs the first message of a stream has ``header = True``: the message is passed to it even if reading
    resumes in the middle of the stream. A codec that writes a first line has ``begun()``, which notifies it that the
    line is already there.
    """

    delimited: ClassVar[bool]  # the result of ``encode`` already ends with a line break

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:
        """Return the value, or NOTHING if the message has no event. It may add to ``meta``.

        Raises ValueError if the message is not valid.
        """

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:
        """Return the message. Raises RejectError if the value can't be encoded."""


class StatelessCodec:
    """The base of codecs without options and state."""

    Options = Struct
    delimited: ClassVar[bool] = False

    def __init__(self, _: Struct) -> None: ...


def codec(given: Named) -> MessageCodec:
    """Return a codec by its name, or by {name: options}. Raises ValueError if either is not valid."""
    kind, options = component("codec", CODECS, given)
    made: MessageCodec = kind(options)
    return made


def encoded(text: str, encoding: str = "utf-8") -> bytes:
    """Encode text. Raises RejectError if the encoding lacks a character."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise RejectError(f"not encodable as {encoding}: {error}") from error


def check_encoding(name: str, special: str = "") -> None:
    """Raise ValueError if Python does not know an encoding, or if it does not contain ASCII as single bytes, or the
    ``special`` characters. Messages are split at bytes.
    """
    try:
        encoded = "".join(map(chr, range(128))).encode(name)
        special.encode(name)
    except (LookupError, UnicodeError) as error:
        raise ValueError(f"encoding is {name!r}: {error}") from None
    if encoded != bytes(range(128)):
        raise ValueError(f"encoding is {name!r}: it must contain ASCII, such as utf-8, latin-1 and cp1252")


def check_depth(value: Any) -> None:
    """Raise ValueError if a peer's value is nested too deeply."""
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
