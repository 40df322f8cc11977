"""The text of INFO, and the lists of SLOWLOG GET and CLIENT LIST.

A redis-server lacks the fields of tidelog. Every reader of ``Info`` therefore handles missing fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tidelog.operating.terminal import safe

ARGUMENTS: Final = 300  # characters of a command that are displayed
LARGEST: Final = frozenset({"log_last_sync_us"})  # fields of which ``summed`` returns the largest number


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

    @property
    def keys(self) -> int | None:
        """The number of keys, None if the server does not report it."""
        if not self.fields or "keys" in self.fields:  # of ``summed``
            return self.number("keys")
        databases = [value for name, value in self.fields.items() if name.startswith("db") and name[2:].isdigit()]
        words = [word.removeprefix("keys=") for value in databases for word in value.split(",")[:1]]
        return sum(int(word) for word in words if word.isdigit())

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


def summed(infos: Sequence[ServerInfo]) -> ServerInfo:
    """Return the sums of the numbers in the fields of several servers; of LARGEST, the largest number.

    A field that a server lacks is missing. ``run_id`` identifies the combination of processes.
    """
    if len(infos) < 2:
        return infos[0] if infos else ServerInfo({})
    found = {"keys": str(sum(each.keys or 0 for each in infos))}
    for name in set.intersection(*(set(each.fields) for each in infos)):
        numbers = [each.number(name) for each in infos]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            found[name] = str(max(known) if name in LARGEST else sum(known))
    for name in ("tidelog_version", "log_appendfsync"):
        values = {each.word(name) for each in infos}
        if len(values) == 1 and "" not in values:
            found[name] = values.pop()
    if any(each.number("maxmemory") == 0 for each in infos):
        found.pop("maxmemory", None)
    runs = ",".join(sorted(each.word("run_id") for each in infos))
    return ServerInfo({**found, "role": "master", "run_id": hashlib.sha256(runs.encode()).hexdigest()})


@dataclass(frozen=True)
class SlowCommand:
    """An entry of the slow log."""

    number: int
    time: int  # s since 1970
    microseconds: int
    command: str
    client: str
    group: str = ""  # in a cluster of several groups


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
