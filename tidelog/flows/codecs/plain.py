"""``string`` and ``binary``: the message is the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tidelog.flows.codecs.base import NoOptions
from tidelog.flows.codecs.json import write_json
from tidelog.flows.errors import RejectError


class String:
    """Text in UTF-8. What is no text is written as JSON."""

    Options = NoOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    def decode(self, data: bytes, meta: dict[str, Any]) -> str:  # noqa: ARG002 - a codec's signature
        return str(data, "utf-8")

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise RejectError(f"not writable as UTF-8: {error}") from error
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        return write_json(value)


class Binary:
    """Bytes as they are; text is written in UTF-8."""

    Options = NoOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    def decode(self, data: bytes, meta: dict[str, Any]) -> bytes:  # noqa: ARG002
        return bytes(data)

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise RejectError(f"not writable as UTF-8: {error}") from error
        raise RejectError(f"the codec binary writes bytes and text, not {type(value).__name__}")
