"""Copies strings with their expiry times.

A reply has at most REPLY bytes, or one value. An expiry time is absolute, so a difference between the clocks of the
servers shifts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from tidelog.moving import inventory
from tidelog.moving.descriptions import NEVER, expiry_command, expiry_of, expiry_slack, text
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.inventory import STRING
from tidelog.moving.pages import REPLY

AT_ONCE: Final = 200  # values per round trip


@dataclass(frozen=True, slots=True)
class StringValue:
    """A string and its expiry time."""

    value: bytes
    expires: int  # ms since 1970; NEVER


def read(end: Endpoint, keys: list[bytes]) -> Iterator[tuple[bytes, StringValue | None]]:
    """Yield each key with its string; None if the key does not exist or has another type."""
    sizes = end.each([("STRLEN", key) for key in keys])
    part: list[bytes] = []
    total = 0
    for key, size in zip(keys, sizes, strict=True):
        if isinstance(size, hiredis.ReplyError):
            if str(size).startswith("NOPERM"):
                raise end.refused(("STRLEN",), str(size))
            yield key, None
            continue
        if part and (total + size > REPLY or len(part) >= AT_ONCE):
            yield from _values(end, part)
            part, total = [], 0
        part.append(key)
        total += size
    if part:
        yield from _values(end, part)


def _values(end: Endpoint, keys: list[bytes]) -> Iterator[tuple[bytes, StringValue | None]]:
    units: list[list[Command]] = [[("GET", key), (expiry_command(end), key), ("TIME",)] for key in keys]
    for key, (value, left, time) in zip(keys, end.at_once(units), strict=True):
        if isinstance(value, hiredis.ReplyError) or value is None:
            yield key, None
        else:
            yield key, StringValue(value, expiry_of(end, left, time))


def copy(source: Endpoint, target: Endpoint, match: str | None, names: set[bytes] | None = None) -> int:
    """Set all strings at the target, and return their number. ``names`` collects their keys."""
    copied = 0
    for page in inventory.pages(source, match):
        keys = [key for key, kind in page.items() if kind == STRING]
        commands: list[Command] = []
        total = 0
        for key, found in read(source, keys):
            if found is None:
                continue
            commands.append(("SET", key, found.value, *(() if found.expires == NEVER else ("PXAT", found.expires))))
            total += len(found.value)
            copied += 1
            if names is not None:
                names.add(key)
            if total > REPLY or len(commands) >= AT_ONCE:
                target.all(commands)
                commands, total = [], 0
        if commands:
            target.all(commands)
    return copied


def differences(source: Endpoint, target: Endpoint, match: str | None) -> Iterator[str]:
    """Yield a line for each difference."""
    slack = expiry_slack(source)
    for page in inventory.pages(source, match):
        keys = [key for key, kind in page.items() if kind == STRING]
        mine = dict(read(source, keys)) if keys else {}
        its = dict(read(target, keys)) if keys else {}
        for key in keys:
            if what := _difference(mine[key], its[key], slack):
                yield f"string {text(key)}: {what}"


def _difference(mine: StringValue | None, its: StringValue | None, slack: int) -> str:
    if mine is None:
        return ""  # expired or deleted
    if its is None:
        return "is not at the target"
    if mine.value != its.value:
        return f"the value differs ({len(mine.value):,} bytes, at the target {len(its.value):,})"
    if (mine.expires == NEVER) != (its.expires == NEVER) or abs(mine.expires - its.expires) > slack:
        return f"expires at {_end(mine.expires)}, at the target {_end(its.expires)}"
    return ""


def _end(ms: int) -> Any:
    return "no time" if ms == NEVER else ms
