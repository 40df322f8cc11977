"""Keys in URLs, patterns of keys, and listing keys in steps.

Rule 1: a key is any bytes. In a URL it is percent-encoded byte by byte.
Rule 2: nothing scans a keyspace without limit. A step examines at most EXAMINED keys; the user asks for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote_from_bytes

from aiohttp import web

from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError
from tidelog.transport.call import plain
from tidelog.transport.errors import message_of

EXAMINED: Final = 10_000  # keys that a step examines, at most
FOUND: Final = 100  # keys after which a step ends
SCANNED: Final = 250  # keys per SCAN: a call takes less than a millisecond
DIGITS: Final = 18  # of a number in a URL; further ones are ignored
LISTED: Final = 1000  # keys up to which a server is small: its streams are listed without being asked for


@dataclass(frozen=True)
class ScanStep:
    """The keys that a step has found, and where the next one begins."""

    keys: list[bytes]
    cursor: bytes  # b"0": all keys were examined
    examined: int  # about


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
    """Find keys of a type: about ``most``, or less if a step ends before. Raises PageError if SCAN is refused."""
    found: dict[bytes, None] = {}  # SCAN may return a key twice
    examined = 0
    while examined < EXAMINED and len(found) < most:
        (reply,) = await connection.read(
            plain("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED, "TYPE", kind)
        )  # fmt: skip
        if isinstance(reply, Exception):
            raise PageError(403, f"The server refuses to list keys: {message_of(reply)}")
        cursor, keys = reply
        found |= dict.fromkeys(keys)
        examined += SCANNED
        if cursor == b"0":
            break
    return ScanStep(list(found), cursor, examined)


async def count_keys(connection: UserConnection) -> int | None:
    """Return the number of keys of the server, None if the user may not know it."""
    (reply,) = await connection.poll(plain("DBSIZE"))
    return None if isinstance(reply, Exception) else int(reply)


def names(keys: list[Any]) -> list[bytes]:
    """Return keys in their order for display."""
    return sorted(keys, key=lambda key: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                         for part in key.split(b":")])  # fmt: skip
