"""``string`` and ``binary``: the message is the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import StatelessCodec, check_encoding, encoded
from tidelog.flows.codecs.json import write_json
from tidelog.options.structs import Struct


class StringOptions(Struct):
    """Options of ``string``."""

    encoding: str = "utf-8"  # A name in Python, of a superset of ASCII.

    def __post_init__(self) -> None:
        check_encoding(self.encoding)


class StringCodec:
    """Decodes text. Encodes text, and values of other types as JSON."""

    Options = StringOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: StringOptions) -> None:
        self._encoding = options.encoding
        self._begun = False  # the first message was decoded

    def decode(self, data: bytes, meta: dict[str, Any]) -> str:  # noqa: ARG002 - a codec's signature
        text = str(data, self._encoding)
        if not self._begun:
            self._begun = True
            return text.removeprefix("\ufeff")  # a byte order mark at the beginning of a file
        return text

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, str):
            return encoded(value, self._encoding)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        return write_json(value)


class BinaryCodec(StatelessCodec):
    """Decodes and encodes bytes unchanged. Text is encoded as UTF-8."""

    def decode(self, data: bytes, meta: dict[str, Any]) -> bytes:  # noqa: ARG002
        return bytes(data)

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str):
            return encoded(value)
        raise RejectError(f"the codec binary encodes bytes and text, not {type(value).__name__}")
