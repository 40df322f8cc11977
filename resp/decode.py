"""Requests at C speed: hiredis parses them, and arithmetic proves that it understood what Redis would have understood.

hiredis' Reader parses replies. So it accepts more than a request may hold (integers, nulls, nested arrays, maps ...),
reserves memory for what an array's header promises, and has state that can't be inspected. Hence:

Rule 1: it is given whole commands and is empty between two feeds; ExactDecoder holds an incomplete command.
Rule 2: what it returns counts once it is proven right; everything else, from the last proven boundary on, goes to
ExactDecoder.

The proof. ``has_data()`` is asked before each ``gets()``: if it is False right after a complete item, the Reader has
consumed all bytes and is between items. An item's canonical size is the size of its arguments with ``*N`` and ``$L``
headers. If all items are lists of bytes and the canonical sizes add up to the bytes consumed, each argument was a bulk
string. Three other types become bytes, too: ``+`` and ``(`` are shorter than the bulk string of the same content, and
``=``, the only longer one, was ruled out before (FOREIGN). So were ``|`` and ``>``, which become lists, too.

Against false promises (a nested ``*999999`` in each nine bytes): all headers from ``*100`` on must be able to be true
at once (_believable). Smaller ones can make the Reader reserve at most 170 bytes for each byte given, until the feed
ends.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final

import hiredis

from resp.exact import ExactDecoder

AT_ONCE: Final = 256 * 1024  # bytes given to hiredis at once: bounds what small false headers can make it reserve
SINGLE: Final = 4096  # bytes; a chunk of up to this size that is one command is split without hiredis

# Wire sizes by content: bytes of ``$n\r\n`` + n + CRLF; bytes of ``*n\r\n``.
BULK_SIZE: Final = [5 + len(str(n)) + n for n in range(4096)]
ARRAY_SIZE: Final = [3 + len(str(n)) for n in range(4096)]
LENGTHS: Final = [b"$%d" % n for n in range(SINGLE)]
# pieces of a command with n arguments when cut at each CRLF
PIECES: Final = {b"*%d" % n: 2 * n + 2 for n in range(1, 1024)}

_pieces: Final = PIECES.get
_flat: Final = chain.from_iterable
_large: Final = re.compile(rb"\*\d{3}").search
_counts: Final = re.compile(rb"\*(\d{3,9})").findall
# Headers that hiredis knows and that no request holds. A verbatim string has a colon after its three letters, so a
# value that ends in "=5" does not look like one. (One search with a class of characters would be ten times slower.)
FOREIGN: Final = [
    (ord("="), re.compile(rb"=\d+\r\n...:", re.DOTALL).search),
    *((ord(c), re.compile(rb"%b\d+\r\n" % re.escape(c.encode())).search) for c in "|>%~"),
]


class RequestDecoder(ExactDecoder):
    """Decodes one peer's requests; see ExactDecoder for limits, attributes and errors."""

    def __init__(
        self, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024, max_buffer: int = 1024 * 1024 * 1024
    ) -> None:
        super().__init__(max_bulk, max_multibulk, max_buffer)
        self.limit(max_bulk, max_buffer)
        self._reader: Any = None  # hiredis.Reader, made for the first pipeline
        # The wire bytes of the first commands that feed() returned last, as many as are known, and the offset after
        # each. The caller must call forget() when it has taken the commands.
        self.raw = b""
        self.ends: list[int] = []

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits; a header that was accepted stays accepted."""
        super().limit(max_bulk, max_buffer)
        # The complete commands in a chunk of up to this size can't exceed a limit: an argument takes six bytes or more.
        self._at_once = min(AT_ONCE, max_bulk, max_buffer, 6 * self.max_multibulk)

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take what arrived; return every command that is now complete, in order. Never raises: see ``error``."""
        self.forget()
        size = len(data)
        if self._midway or size > self._at_once or not self.authenticated or self.error is not None:
            return self._unusual(data)
        if size <= SINGLE and data.rfind(b"*") == 0:
            words = data.split(b"\r\n")
            last = len(words) - 1
            if _pieces(words[0]) == last + 1 and not words[last]:
                at = 2
                while at <= last and words[at - 1] == LENGTHS[len(words[at])]:
                    at += 2
                if at > last:
                    return [words[2::2]]
        return self._pipeline(data)

    def forget(self) -> None:
        """Drop the wire bytes of commands that were taken."""
        if self.raw:
            self.raw = b""
            self.ends = []

    def _unusual(self, data: bytes) -> list[list[bytes]]:
        commands: list[list[bytes]] = []
        if len(data) > AT_ONCE:
            view = memoryview(data)
            for at in range(0, len(data), AT_ONCE):
                commands += self.feed(bytes(view[at : at + AT_ONCE]))
            self.forget()  # they are those of the last piece only
            return commands
        if self._midway and self.authenticated:
            data = self._parse(data, commands, once=True)
            if data and self.error is None and len(data) <= self._at_once:
                commands += self.feed(data)
                self.forget()  # they do not begin with the first of these commands
                return commands
        self._parse(data, commands, once=False)
        return commands

    def _pipeline(self, data: bytes) -> list[list[bytes]]:
        """Decode from a command's start on: several commands, or one that is incomplete or wrong."""
        end = len(data)
        if not data.endswith(b"\r\n"):  # incomplete: without what seems to be its last command
            end = data.rfind(b"\r\n*") + 2
        commands: list[list[bytes]] = []
        if end > 2 and data.startswith(b"*") and _believable(data):
            raw = data[:end]
            found, whole = self._read(raw)
            ends: list[int] = []
            size = _canonical_size(found, data.count(b"*", 0, end), ends)
            if not whole and 0 < size < end:  # the last command is incomplete, or a payload looked like a header
                end = size
                raw = data[:end]
                found, whole = self._read(raw)
                ends = []
                size = _canonical_size(found, data.count(b"*", 0, end), ends)
            if whole and size == end:
                if all(found):
                    commands, self.raw, self.ends = found, raw, ends
                else:
                    commands = [argv for argv in found if argv]
                data = data[end:]
        if data:
            self._parse(data, commands, once=False)
        return commands

    def _read(self, data: bytes) -> tuple[list[list[bytes]], bool]:
        """What hiredis makes of ``data``, and whether it consumed all of it and is between items."""
        items: list[list[bytes]] = []
        reader = self._reader
        if reader is None:
            reader = self._reader = hiredis.Reader()
        more, get, append = reader.has_data, reader.gets, items.append
        reader.feed(data)
        try:
            while more():
                item = get()
                if item is False:
                    break
                append(item)
            else:
                return items, True
        except hiredis.HiredisError:  # no TypeError: maps and sets, whose keys can raise it, were ruled out
            pass
        self._reader = None  # it holds the beginning of an item
        return items, False


def _believable(data: bytes) -> bool:
    """Whether hiredis may see ``data``: no header that is foreign to requests, and none that promises too much."""
    for first, search in FOREIGN:
        if first in data and search(data) is not None:
            return False
    return _large(data) is None or 6 * sum(map(int, _counts(data))) <= len(data)


def _canonical_size(items: list[list[bytes]], asterisks: int, ends: list[int]) -> int:
    """The bytes that the items take as commands; -1 if they are not all lists of bytes.

    ``asterisks`` is their number in the bytes that the items come from. If it is the number of items, no list is nested
    in another, and anything else that is not bytes has no length. The offset after each command is added to ``ends``.
    """
    if set(map(type, items)) != {list}:
        return -1
    if asterisks != len(items) and not set(map(type, _flat(items))) <= {bytes}:
        return -1
    size = 0
    try:
        for argv in items:
            size += ARRAY_SIZE[len(argv)] if len(argv) < 4096 else 3 + len(str(len(argv)))
            for arg in argv:
                length = len(arg)
                size += BULK_SIZE[length] if length < 4096 else 5 + len(str(length)) + length
            ends.append(size)
    except TypeError:  # an integer, a null, an error ...
        return -1
    return size
