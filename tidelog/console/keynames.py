"""Keys in URLs, patterns of keys, and listing keys in steps.

Rule 1: a key is any bytes. In a URL it is percent-encoded byte by byte.
Rule 2: nothing scans a keyspace without limit. A step examines at most EXAMINED keys, in all groups of a cluster
        together; the user asks for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote_from_bytes
from zlib import crc32

from aiohttp import web

from tidelog.console.connection import UserConnection
from tidelog.console.errors import GroupUnavailableError, PageError
from tidelog.transport.call import plain
from tidelog.transport.errors import message_of
from tidelog.transport.slots import MemberAddress

EXAMINED: Final = 10_000  # keys that a step examines, at most
FOUND: Final = 100  # keys after which a step ends
SCANNED: Final = 250  # keys per SCAN: a call takes less than a millisecond
DIGITS: Final = 18  # of a number in a URL; further ones are ignored
LISTED: Final = 1000  # keys of a server, or of each group, up to which they are listed without being asked for


@dataclass(frozen=True)
class ScanStep:
    """The keys that a step has found, and where the next one begins."""

    keys: list[bytes]
    cursor: bytes  # b"0": all keys were examined
    examined: int  # about
    problems: tuple[str, ...] = ()  # why keys are missing


@dataclass(frozen=True)
class KeyCount:
    """The keys of a server, or of all groups of a cluster that answer."""

    total: int | None  # None: the user may not know it
    small: bool  # no group has more than LISTED keys
    problems: tuple[str, ...] = ()  # of groups that do not answer


def query_bytes(request: web.Request, name: str) -> bytes:
    """Return a parameter of the URL, empty if it is missing."""
    pairs = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape")
    return next((value.encode("utf-8", "surrogateescape") for key, value in pairs if key == name), b"")


def number_of(request: web.Request, name: str) -> int:
    """Return a parameter of the URL that is a number, 0 if it is missing or not one."""
    words = request.query.get(name, "")
    return int(words[:DIGITS]) if words.isascii() and words.isdecimal() else 0


def key_of(request: web.Request) -> bytes:
    """Return the key of a page. Raises PageError if there is none."""
    key = query_bytes(request, "key")
    if not key:
        try:
            key = bytes.fromhex(request.query.get("keyhex", ""))  # in forms, which can't have all bytes
        except ValueError:
            key = b""
    if not key:
        raise PageError(400, "The address names no stream.")
    return key


def in_url(raw: bytes | str) -> str:
    """Return a key in the form for URLs."""
    return quote_from_bytes(raw.encode() if isinstance(raw, str) else raw, safe="")


def pattern_of(words: bytes) -> bytes:
    """Return the pattern for what a user has typed: without a wildcard, keys that contain it."""
    if any(each in words for each in b"*?["):
        return words
    return b"*" + words.replace(b"\\", b"\\\\") + b"*" if words else b"*"


async def scan(
    connection: UserConnection, pattern: bytes, cursor: bytes, kind: str = "stream", most: int = FOUND
) -> ScanStep:
    """Find keys of a type: about ``most``, or less if a step ends before. Raises PageError if SCAN is refused.

    The groups of a cluster are examined one after the other. A group that does not answer is left out.
    """
    leaders = await connection.leaders()
    found: dict[bytes, None] = {}  # SCAN may return a key twice
    problems: list[str] = []
    try:
        at, cursor = _position(cursor, leaders)
    except ValueError:
        return ScanStep([], b"0", 0, ("The groups of the cluster, or their leaders, have changed. Search again.",))
    examined = 0
    while at < len(leaders) and examined < EXAMINED and len(found) < most:
        call = plain("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED, "TYPE", kind)
        (reply,) = await connection.read(call, at=leaders[at])
        if isinstance(reply, GroupUnavailableError):
            problems.append(f"Keys are missing here: {reply}")
            at, cursor = at + 1, b"0"
            continue
        if isinstance(reply, Exception):
            raise PageError(403, f"The server refuses to list keys: {message_of(reply)}")
        cursor, keys = reply
        found |= dict.fromkeys(keys)
        examined += SCANNED
        if cursor == b"0":
            at += 1
    following = b"0" if at == len(leaders) else _cursor(at, cursor, leaders)
    return ScanStep(list(found), following, examined, tuple(problems))


def _cursor(at: int, cursor: bytes, leaders: Sequence[MemberAddress | None]) -> bytes:
    """Return the position of a search. With several groups, it has the leader and a digest of all leaders."""
    return cursor if leaders[0] is None else b"%d.%d.%b" % (_digest(leaders), at, cursor)


def _position(cursor: bytes, leaders: Sequence[MemberAddress | None]) -> tuple[int, bytes]:
    """Return which leader is searched next, and its cursor. Raises ValueError if the leaders have changed."""
    if cursor == b"0" or leaders[0] is None:
        return 0, cursor
    digest, at, own = cursor.split(b".")
    if int(digest) != _digest(leaders):
        raise ValueError("leaders")
    return int(at), own


def _digest(leaders: Sequence[MemberAddress | None]) -> int:
    return crc32(",".join(map(str, leaders)).encode())


async def key_count(connection: UserConnection) -> KeyCount:
    """Return the number of keys of all groups, and whether they may be listed without being asked for."""
    counts: list[int | None] = []
    problems = []
    leaders = await connection.leaders()
    for (reply,) in await asyncio.gather(*(connection.poll(plain("DBSIZE"), at=leader) for leader in leaders)):
        if isinstance(reply, GroupUnavailableError):
            problems.append(str(reply))
        else:
            counts.append(None if isinstance(reply, Exception) else int(reply))
    known = [each for each in counts if each is not None]
    if len(known) < len(counts):  # the user may not count them
        return KeyCount(None, False, tuple(problems))
    return KeyCount(sum(known), max(known, default=0) <= LISTED and sum(known) <= EXAMINED, tuple(problems))


def names(keys: list[Any]) -> list[bytes]:
    """Return keys in their order for display."""
    return sorted(keys, key=lambda key: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                         for part in key.split(b":")])  # fmt: skip
