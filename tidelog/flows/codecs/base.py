"""Codecs: one message's bytes as a value, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Codec(Protocol):
    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:
        """ValueError: it can't be read. A codec may add to ``meta``."""

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:
        """RejectError: the value can't be written."""


def codec(given: str | Mapping[str, Any]) -> Codec:
    """By name, or {name: options}. ValueError: what is wrong."""
    raise ValueError(f"there is no codec {given!r}")
