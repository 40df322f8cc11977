"""Entry IDs: 128 bits, ``ms << 64 | seq``, as one int; 0 is never given to an entry and means "none".

T commands print ``ms.seq`` and take ``ms.seq`` or ``ms-seq`` (semantics [1], [2]).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from resp.errors import INVALID_ID, CommandError

MASK64: Final = (1 << 64) - 1
MAX_ID: Final = (1 << 128) - 1

# Many IDs at once, as 16 bytes each: see _ids.c. None without it: then who needs them makes them in Python.
_raws: Callable[[int, array[int], array[int], int, int], list[bytes]] | None = None
_parsed: Callable[[list[bytes], int], list[bytes] | None] | None = None
try:
    from storage.model import _ids

    _raws, _parsed = _ids.raws, _ids.parsed
except ImportError:  # installed without a C compiler, or a checkout
    pass
RAWS: Final[Callable[[int, array[int], array[int], int, int], list[bytes]] | None] = _raws
PARSED: Final[Callable[[list[bytes], int], list[bytes] | None] | None] = _parsed


def raw_id(id: int) -> bytes:  # noqa: A002
    """The ID as 16 bytes, big-endian."""
    return id.to_bytes(16, "big")


def format_id(id: int) -> bytes:  # noqa: A002
    return b"%d.%d" % (id >> 64, id & MASK64)


def _number(text: bytes) -> int:
    """An unsigned 64-bit number, digits only."""
    if not text.isdigit() or len(text) > 20:
        raise CommandError(INVALID_ID)
    number = int(text)
    if number > MASK64:
        raise CommandError(INVALID_ID)
    return number


def parse_id(text: bytes, default_seq: int = 0) -> int:
    """``ms.seq``, ``ms-seq``, or plain ``ms`` with ``default_seq``. Raises CommandError."""
    dot = text.find(b".")
    if dot < 0:
        dot = text.find(b"-")
    if dot < 0:
        return _number(text) << 64 | default_seq
    return _number(text[:dot]) << 64 | _number(text[dot + 1 :])


def parse_range_start(text: bytes) -> int:
    """First ID in a range that starts at ``text``: ``-``, ``+``, an ID, or ``(id``. MAX_ID + 1 if there is none."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if text[:1] == b"(":
        return parse_id(text[1:]) + 1
    return parse_id(text)


def parse_range_end(text: bytes) -> int:
    """Last ID in a range that ends at ``text``; -1 if there is none."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if text[:1] == b"(":
        return parse_id(text[1:], MASK64) - 1
    return parse_id(text, MASK64)
