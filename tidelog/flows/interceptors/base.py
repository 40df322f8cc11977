"""Interceptors: what is done to bytes before a codec reads them (preprocessors) and after it wrote them (postprocessors)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Preprocessor(Protocol):
    def feed(self, data: bytes) -> list[bytes]:
        """Pieces that are complete. ValueError: too long, or not what was expected; the stream can't be read on."""

    def end(self) -> list[bytes]:
        """The stream has ended: what is left."""


class Postprocessor(Protocol):
    def process(self, data: bytes) -> list[bytes]: ...

    def end(self) -> list[bytes]: ...


def preprocessor(given: str | Mapping[str, Any], most: int) -> Preprocessor:
    """By name, or {name: options}. most: bytes of one message. ValueError: what is wrong."""
    raise ValueError(f"there is no preprocessor {given!r}")


def postprocessor(given: str | Mapping[str, Any]) -> Postprocessor:
    raise ValueError(f"there is no postprocessor {given!r}")
