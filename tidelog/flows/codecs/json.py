"""``json`` and ``jsonl``, implemented with msgspec.

Numbers of any length are decoded. NaN and infinities are encoded as null, bytes as base64, and times in RFC 3339.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import DEPTH, StatelessCodec, check_depth
from tidelog.options.structs import Struct

_DECODER: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_BOM: Final = b"\xef\xbb\xbf"  # at the beginning of UTF-8 files from Windows


class JsonCodec(StatelessCodec):
    """Decodes and encodes one JSON value per message."""

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        return read_json(data)

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        return write_json(value)


class JsonLinesOptions(Struct):
    """Options of ``jsonl``."""

    list: bool = False  # `true`: a message is decoded as a list even if it has one line.


class JsonLinesCodec:
    """Decodes and encodes one JSON value per line.

    A list is encoded as one line for each item. Several lines in one message are decoded as a list.
    """

    Options = JsonLinesOptions
    delimited: ClassVar[bool] = True

    def __init__(self, options: JsonLinesOptions) -> None:
        self._list = options.list

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002
        values = [read_json(line) for line in data.split(b"\n") if line.strip()]
        if self._list:
            return values
        if not values:
            raise ValueError("not JSON: all lines are empty")
        return values[0] if len(values) == 1 else values

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, (list, tuple)):
            return b"".join(write_json(each) + b"\n" for each in value)
        return write_json(value) + b"\n"


def read_json(data: bytes) -> Any:
    """Decode a value. Raises ValueError if it is not valid, or nested too deeply."""
    try:
        value = _DECODER.decode(data.removeprefix(_BOM))
    except RecursionError:
        raise ValueError(f"nested more than {DEPTH} deep") from None
    if data.count(b"[") + data.count(b"{") > DEPTH:
        check_depth(value)
    return value


def write_json(value: Any) -> bytes:
    """Encode a value. Raises RejectError if that is not possible."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RejectError(f"not encodable as JSON: {error}") from error
