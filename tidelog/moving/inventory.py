"""Lists the keys of a server, and those that can be copied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.moving.endpoints import Command, Endpoint

SCANNED: Final = 1000  # keys per SCAN
NAMED: Final = 1000  # keys of other types that are named, at most

STREAM: Final = b"stream"
STRING: Final = b"string"
NONE: Final = b"none"


@dataclass(slots=True)
class Other:
    """Keys of an unsupported type."""

    keys: int = 0
    named: list[bytes] = field(default_factory=list)  # the first NAMED of them

    def add(self, key: bytes) -> None:
        self.keys += 1
        if len(self.named) < NAMED:
            self.named.append(key)


@dataclass(slots=True)
class Inventory:
    """The keys of the source."""

    streams: dict[bytes, None] = field(default_factory=dict)  # in the order of SCAN
    strings: int = 0
    others: dict[str, Other] = field(default_factory=dict)  # by type
    taken: dict[bytes, bytes] = field(default_factory=dict)  # keys that exist at the target, with their types


def pages(end: Endpoint, match: str | None) -> Iterator[dict[bytes, bytes]]:
    """Yield keys with their types, page by page. As with SCAN, a key may occur twice."""
    cursor = b"0"
    while True:
        pattern: Command = ("MATCH", match) if match is not None else ()
        cursor, keys = end.ask("SCAN", cursor, *pattern, "COUNT", SCANNED)
        kinds = end.all([("TYPE", key) for key in keys]) if keys else []
        yield {key: kind for key, kind in zip(keys, kinds, strict=True) if kind != NONE}
        if cursor == b"0":
            return


def take(source: Endpoint, target: Endpoint | None, match: str | None) -> Inventory:
    """List the keys of the source and, given a target, those that exist there."""
    found = Inventory()
    for page in pages(source, match):
        movable = []
        for key, kind in page.items():
            if kind == STREAM:
                found.streams[key] = None
            elif kind == STRING:
                found.strings += 1
            else:
                found.others.setdefault(kind.decode(), Other()).add(key)
                continue
            movable.append(key)
        if target is not None and movable:
            there = target.all([("TYPE", key) for key in movable])
            for key, kind in zip(movable, there, strict=True):
                if kind != NONE:
                    found.taken[key] = kind
    return found
