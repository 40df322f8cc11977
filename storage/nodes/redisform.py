"""Entries in the form that X commands send: made from the wire form (``entries``) by their heads only.

    *5 CRLF $15 CRLF 1486475519747.0 CRLF             $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...      T form, as kept
    *2 CRLF $15 CRLF 1486475519747-0 CRLF *4 CRLF     $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...      X form

Entries that are neighbours mostly begin with the same bytes, up to the ID, whose length these bytes tell, and have the
dot of the ID at the same place. So two looks tell where to cut, and nothing is searched. Compiled, 1000 entries take
0.11 ms; with replace() for the dot, 0.13 ms.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

from storage.nodes.node import Node


class _LastHead:
    """What the last entry began with, whichever stream it was of."""

    __slots__ = ("dot", "first", "head", "size", "stop", "values")

    def __init__(self) -> None:
        self.head = b"\0"  # up to the ID; no entry begins with a zero
        self.first = self.values = b""  # the same in the X form, and the header of its second array
        self.size = 1  # of the head
        self.dot = self.stop = 0  # offsets of the ID's dot, and behind its CRLF


_last: Final = _LastHead()

PARTS: Final = 6  # of each entry that dashed_run() makes


def redis_node(node: Node) -> tuple[bytes, array[int]]:
    """All entries of a node, and where in that each ends."""
    parts = redis_parts(bytes(node.wire), node.ends.tolist())
    ends = list(accumulate([len(part) for part in parts]))
    return b"".join(parts), array("I", ends[PARTS - 1 :: PARTS])


def redis_entry(entry: bytes) -> bytes:
    """One entry."""
    return b"".join(redis_parts(entry, [len(entry)]))


def redis_entries(entries: list[bytes]) -> bytes:
    """Many entries, joined."""
    return b"".join(redis_parts(b"".join(entries), list(accumulate([len(entry) for entry in entries]))))


def redis_parts(wire: bytes, cuts: list[int]) -> list[bytes]:
    """Entries that are joined in ``wire`` and end at ``cuts``: the parts that make their X form."""
    parts: list[bytes] = []
    last = _last
    head, first, values, size, dot, stop = last.head, last.first, last.values, last.size, last.dot, last.stop
    at = 0
    for end in cuts:
        if wire[at : at + size] != head or wire[at + dot] != 46:
            count_end = wire.index(b"\r\n", at)
            size_end = wire.index(b"\r\n", count_end + 2)
            size = size_end + 2 - at
            dot = wire.index(b".", size_end) - at
            stop = size + int(wire[count_end + 3 : size_end]) + 2
            head = wire[at : at + size]
            first = b"*2" + wire[count_end : at + size]
            values = b"*%d\r\n" % (int(wire[at + 1 : count_end]) - 1)
            last.head, last.first, last.values, last.size, last.dot, last.stop = head, first, values, size, dot, stop
        parts.append(first)
        parts.append(wire[at + size : at + dot])
        parts.append(b"-")
        parts.append(wire[at + dot + 1 : at + stop])
        parts.append(values)
        parts.append(wire[at + stop : end])
        at = end
    return parts
