"""The text of INFO, and the lists of SLOWLOG GET and CLIENT LIST.

A redis-server lacks the fields of tidelog. Every reader of ``Info`` therefore handles missing fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tidelog.operating.terminal import safe

ARGUMENTS: Final = 300  # characters of a command that are displayed


def text(raw: bytes | str) -> str:
    """Return bytes as text without control characters. Bytes that are not UTF-8 are written as ``\\xff``."""
    return safe(raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw)


class ServerInfo:
    """The fields of INFO. ``parse`` reads its text."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.fields = fields

    @classmethod
    def parse(cls, raw: bytes) -> ServerInfo:
        lines = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines())
        return cls({name: value for name, colon, value in lines if colon and not name.startswith("#")})

    def number(self, name: str) -> int | None:
        """Return a field as a whole number, None if the server doesn't have it."""
        value = self.fields.get(name, "")
        try:
            return int(value)
        except ValueError:
            return None

    def word(self, name: str) -> str:
        """Return a field, empty if the server doesn't have it."""
        return text(self.fields.get(name, ""))

    def total(self, *names: str) -> int | None:
        """Return the sum of the fields that exist, None if there are none."""
        found = [value for name in names if (value := self.number(name)) is not None]
        return sum(found) if found else None

    @property
    def is_tidelog(self) -> bool:
        return "tidelog_version" in self.fields

    @property
    def leads(self) -> bool:
        return self.fields.get("role") == "master"

    def replicas(self) -> Iterator[dict[str, str]]:
        """Yield the fields of each connected replica."""
        for index in range(self.number("connected_slaves") or 0):
            line = self.fields.get(f"slave{index}", "")
            if line:
                yield {name: text(value) for name, _, value in (each.partition("=") for each in line.split(","))}


@dataclass(frozen=True)
class SlowCommand:
    """An entry of the slow log."""

    number: int
    time: int  # s since 1970
    microseconds: int
    command: str
    client: str


def slow_commands(reply: list[Any]) -> list[SlowCommand]:
    """Return the entries of SLOWLOG GET."""
    return [
        SlowCommand(
            int(number), int(time), int(microseconds), text(b" ".join(words))[:ARGUMENTS],
            text(rest[0]) if rest else "",
        )
        for number, time, microseconds, words, *rest in reply
    ]  # fmt: skip


def clients(reply: bytes, most: int) -> tuple[list[dict[str, str]], int]:
    """Return the fields of the first clients of CLIENT LIST, and how many clients there are."""
    lines = reply.splitlines()
    return list(islice(_clients(lines), most)), len(lines)


def _clients(lines: Iterable[bytes]) -> Iterator[dict[str, str]]:
    for line in lines:
        pairs = (each.partition(b"=") for each in line.split(b" ") if each)
        yield {text(name): text(value) for name, _, value in pairs}
