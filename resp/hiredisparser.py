"""Parses chunks that begin with a command of many arguments with hiredis. Used if ``resp.decode`` is not compiled.

hiredis parses replies. It accepts more than a request may contain: other types than bulk strings, nested arrays, any
two bytes after an argument. So each result is encoded again and compared with the bytes that arrived. If they differ,
this parser stops there, and the loop of ``resp.decode`` continues.

Rule 1: no memory is allocated for the lengths that a header announces. hiredis allocates lists of the announced length,
so it never gets bytes that look like the header of a large aggregate.
Rule 2: ``HiredisParser`` has no state between two calls: a reader that is left with an incomplete command is replaced.

Decision (interpreted, Python 3.11, ns for each command, loop / hiredis with the proof; P: commands in a chunk):

    arguments             P 1              P 16
    2 of 7 bytes          900 / 1750       740 / 1110
    4, one of 100         1830 / 1950      1770 / 1370
    8 of 5                2480 / 2280      2540 / 1710
    11 of 5               3620 / 2550      3660 / 1970
    43 of 5               12250 / 5550     12620 / 4880
    13, ten of 100        8350 / 3650      8400 / 3220
    13, ten of 1000       10300 / 11900    10060 / 12400
    900 of 4              252 us / 77 us

Commands with fewer than ten arguments, and commands with large arguments, are therefore left to the loop. Proving the
result with hiredis.pack_command() instead took 1.3 times as long as joining the parts here.
"""

from __future__ import annotations

import re
from typing import Any

import hiredis

from resp.decode import DIGITS, Call, Head
from resp.exact import SHORT

WINDOW = 32  # bytes per argument; on average, at least one line must end in each, or the arguments are too large
PREFIX = 24  # number of bytes at the beginning of a call that a call like it must share

# hiredis allocates a list of the announced length for an array, a set, a push and an attribute, also for nested ones.
# The more of these a chunk may contain, the shorter they must be: (maximum number, a search for one with too many
# digits).
_ARRAYS = [(16, re.compile(rb"\*[0-9]{5}").search), (128, re.compile(rb"\*[0-9]{4}").search)]
_OTHERS = re.compile(rb"[~>|][0-9]{3}").search
_MANY_ARRAYS = re.compile(rb"\*[0-9]{3}").search
_headers = [b"$%d" % n for n in range(SHORT)]


class HiredisParser:
    """A ``resp.decode.Parser``. ``heads``: those of SharedDecoding."""

    def __init__(self, heads: dict[bytes, Head]) -> None:
        self._heads = heads
        self._reader = hiredis.Reader(notEnoughData=None)

    def __call__(self, data: bytes, at: int, calls: list[Call], ends: list[int]) -> int:
        """Add the complete commands from ``at`` on that hiredis parses correctly; return the offset after them."""
        end = data.find(b"\r", at, at + 2 + DIGITS)
        if end < 0 or not data[at + 1 : end].isdigit():
            return at
        count = int(data[at + 1 : end])
        if data.count(b"\r\n", at, at + WINDOW * count) < count or self._may_be_alike(data, at):
            return at
        if _allocates_much(data, at):
            return at
        reader, header, join = self._reader, _headers.__getitem__, b"\r\n".join
        reader.feed(data if not at else data[at:])
        try:
            while (argv := reader.gets()) is not None:
                words = len(argv)
                parts: list[Any] = [b""] * (2 * words + 2)
                parts[0] = b"*%d" % words
                parts[1:-1:2] = map(header, map(len, argv))
                parts[2:-1:2] = argv
                wire = join(parts)
                if not words or not data.startswith(wire, at):
                    break
                at += len(wire)
                calls.append(argv)
                ends.append(at)
        except (hiredis.ProtocolError, IndexError, TypeError, MemoryError):
            pass  # not a request, or a request with a large argument
        if at < len(data):
            self._reader = hiredis.Reader(notEnoughData=None)
        return at

    def _may_be_alike(self, data: bytes, at: int) -> bool:
        """Whether the call at ``at`` and a later one may become an Alike object, whose arguments are never decoded."""
        start = data.find(b"\n", data.find(b"$", at)) + 1
        name = data[start : data.find(b"\r", start)]
        return name in self._heads and data.find(data[at : at + PREFIX], at + PREFIX) >= 0


def _allocates_much(data: bytes, at: int) -> bool:
    """Return whether hiredis may allocate more than some megabytes for the bytes from ``at`` on (Rule 1)."""
    others = data.count(b"~", at) + data.count(b">", at) + data.count(b"|", at)
    if others and _OTHERS(data, at):
        return True
    arrays = data.count(b"*", at) + others
    for most, search in _ARRAYS:
        if arrays <= most:
            return search(data, at) is not None
    return _MANY_ARRAYS(data, at) is not None
