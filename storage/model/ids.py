"""Entry IDs: 128 bits, ``ms << 64 | seq``, as one int. 0 is never assigned to an entry and means "none".

T commands return ``ms.seq`` and accept ``ms.seq`` or ``ms-seq`` (semantics [1], [2]).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from resp.errors import INVALID_ID, CommandError

MASK64: Final = (1 << 64) - 1
MAX_ID: Final = (1 << 128) - 1

# Conversions of many IDs to 16 bytes each, in C (_ids.c): a client waits for them, and Python would create an object
# for each number. None if it was not compiled; the callers then use Python.
_raws: Callable[[int, array[int], array[int], int, int], list[bytes]] | None = None
_parsed: Callable[[list[bytes], int], list[bytes] | None] | None = None
try:
    from storage.model import _ids

    _raws, _parsed = _ids.raws, _ids.parsed
except ImportError:  # installed without a C compiler, or run from a checkout
    pass
RAWS: Final[Callable[[int, array[int], array[int], int, int], list[bytes]] | None] = _raws
PARSED: Final[Callable[[list[bytes], int], list[bytes] | None] | None] = _parsed


def raw_id(id: int) -> bytes:  # noqa: A002
    """Return an ID as 16 bytes, big-endian."""
    return id.to_bytes(16, "big")


def format_id(id: int) -> bytes:  # noqa: A002
    return b"%d.%d" % (id >> 64, id & MASK64)


def _number(text: bytes) -> int:
    """Parse an unsigned 64-bit number."""
    if not text.isdigit() or len(text) > 20:
        raise CommandError(INVALID_ID)
    number = int(text)
    if number > MASK64:
        raise CommandError(INVALID_ID)
    return number


def parse_id(text: bytes, default_seq: int = 0) -> int:
    """Parse ``ms.seq``, ``ms-seq``, or plain ``ms`` with ``default_seq``.

    Raises CommandError if ``text`` is invalid.
    """
    dot = text.find(b".")
    if dot < 0:
        dot = text.find(b"-")
    if dot < 0:
        return _number(text) << 64 | default_seq
    return _number(text[:dot]) << 64 | _number(text[dot + 1 :])


def parse_range_start(text: bytes) -> int:
    """Return the first ID of a range that starts at ``-``, ``+``, an ID, or ``(id``; MAX_ID + 1 if it is empty."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if text[:1] == b"(":
        return parse_id(text[1:]) + 1
    return parse_id(text)


def parse_range_end(text: bytes) -> int:
    """Return the last ID of a range that ends at ``-``, ``+``, an ID, or ``(id``; -1 if the range is empty."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if text[:1] == b"(":
        return parse_id(text[1:], MASK64) - 1
    return parse_id(text, MASK64)
