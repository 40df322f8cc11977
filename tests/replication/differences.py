"""What differs between two servers whose digests do: for the message of a test that rarely fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Ask = Callable[..., Any]  # sends a command to a server, returns the reply
ALL = ("-", "+", 1_000_000)
LONGEST = 300  # characters of a value that are shown


def differences(one: Ask, other: Ask) -> list[str]:
    """The first difference of each key and group; empty if clients see none."""
    found: list[str] = []
    keys = sorted({*one("KEYS", "*"), *other("KEYS", "*")})
    for key in keys:
        for words in _questions(one, key):
            mine, its = _told(one, words), _told(other, words)
            if mine != its:
                found.append(f"{' '.join(map(str, words))}: {_first(mine, its)}")
    return found


def _questions(ask: Ask, key: bytes) -> Iterator[tuple[Any, ...]]:
    yield "TYPE", key
    yield "PEXPIRETIME", key
    if ask("TYPE", key) == b"string":
        yield "GET", key
    if ask("TYPE", key) == b"stream":
        yield "XINFO", "STREAM", key
        yield "TRANGE", key, "-", "+"
        yield "TDELAY", key, "LIST", 0, "COUNT", 1000
        yield "XINFO", "GROUPS", key
        yield "TGROUP", "LIST", key
        for group in ask("TGROUP", "LIST", key):
            yield "TPENDING", key, group[b"name"], *ALL


def _told(ask: Ask, words: tuple[Any, ...]) -> object:
    try:
        reply = ask(*words)
    except Exception as error:  # noqa: BLE001 - a reply like others
        return repr(error)
    if isinstance(reply, dict):  # how a stream is divided into nodes is not a part of its contents
        return {name: value for name, value in reply.items() if not bytes(name).startswith(b"radix-tree-")}
    return reply


def _first(mine: object, its: object) -> str:
    """Where two replies begin to differ."""
    if isinstance(mine, list) and isinstance(its, list):
        for at, (a, b) in enumerate(zip(mine, its, strict=False)):
            if a != b:
                return f"{len(mine)} and {len(its)} rows, number {at} is {a!r:.{LONGEST}} and {b!r:.{LONGEST}}"
        return f"{len(mine)} and {len(its)} rows"
    return f"{mine!r:.{LONGEST}} and {its!r:.{LONGEST}}"
