"""Replies as RESP bytes, for RESP2 and RESP3 (https://redis.io/docs/latest/develop/reference/protocol-spec/).

Rule 1: all functions return encoded bytes. The items of an aggregate must be encoded already.
Rule 2: if the versions differ, the function takes ``proto`` (2 or 3).

For commands that are not performance-critical, ``encode`` converts nested Python values to replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
QUEUED: Final = b"+QUEUED\r\n"
NULL_BULK: Final = b"$-1\r\n"
NULL_ARRAY: Final = b"*-1\r\n"
NULL3: Final = b"_\r\n"
EMPTY_ARRAY: Final = b"*0\r\n"

BULK_HEADERS: Final = [b"$%d\r\n" % n for n in range(4096)]
ARRAY_HEADERS: Final = [b"*%d\r\n" % n for n in range(1024)]
INTEGERS: Final = [b":%d\r\n" % n for n in range(1024)]


def bulk_header(n: int) -> bytes:
    return BULK_HEADERS[n] if n < 4096 else b"$%d\r\n" % n


def array_header(n: int) -> bytes:
    return ARRAY_HEADERS[n] if n < 1024 else b"*%d\r\n" % n


def simple(text: bytes) -> bytes:
    """Encode a simple string; ``text`` must not contain CR or LF."""
    return b"+%b\r\n" % text


def error(text: str) -> bytes:
    """Encode an error; ``text`` as in CommandError. Line ends become spaces."""
    return b"-%b\r\n" % text.replace("\r", " ").replace("\n", " ").encode("utf-8", "backslashreplace")


def decimal(n: int) -> bytes:
    return str(n).encode()  # compiled, twice as fast as b"%d"


def integer(n: int) -> bytes:
    if 0 <= n < 1024:
        return INTEGERS[n]
    return b":%b\r\n" % decimal(n)


def bulk(data: bytes) -> bytes:
    return b"%b%b\r\n" % (bulk_header(len(data)), data)


def array(items: Sequence[bytes]) -> bytes:
    return array_header(len(items)) + b"".join(items)


def bulk_array(items: Iterable[bytes]) -> bytes:
    return array([bulk(item) for item in items])


def null(proto: int) -> bytes:
    """Encode a null that replaces a bulk string."""
    return NULL3 if proto == 3 else NULL_BULK


def null_array(proto: int) -> bytes:
    """Encode a null that replaces an array."""
    return NULL3 if proto == 3 else NULL_ARRAY


def map_header(proto: int, pairs: int) -> bytes:
    return b"%%%d\r\n" % pairs if proto == 3 else array_header(2 * pairs)


def map_reply(proto: int, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return map_header(proto, len(pairs)) + b"".join([part for pair in pairs for part in pair])


def set_reply(proto: int, items: Sequence[bytes]) -> bytes:
    return (b"~%d\r\n" % len(items) if proto == 3 else array_header(len(items))) + b"".join(items)


def push(proto: int, items: Sequence[bytes]) -> bytes:
    return (b">%d\r\n" % len(items) if proto == 3 else array_header(len(items))) + b"".join(items)


def double(proto: int, x: float) -> bytes:
    text = repr(x).encode().removesuffix(b".0")
    return b",%b\r\n" % text if proto == 3 else bulk(text)


def boolean(proto: int, value: bool) -> bytes:
    if proto == 3:
        return b"#t\r\n" if value else b"#f\r\n"
    return b":1\r\n" if value else b":0\r\n"


def verbatim(proto: int, fmt: str, text: bytes) -> bytes:
    """Encode a verbatim string. ``fmt``: ``txt`` or ``mkd``."""
    if proto == 3:
        return b"=%d\r\n%b:%b\r\n" % (len(text) + 4, fmt.encode(), text)
    return bulk(text)


def encode(proto: int, value: object) -> bytes:
    """Encode a nested Python value: None, bool, int, float, str and bytes (bulk strings), list, tuple, dict, set.

    Raises TypeError for other types.
    """
    if value is None:
        return null(proto)
    if isinstance(value, bool):
        return boolean(proto, value)
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return double(proto, value)
    if isinstance(value, str):
        return bulk(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes):
        return bulk(value)
    if isinstance(value, Mapping):
        return map_reply(proto, [(encode(proto, k), encode(proto, v)) for k, v in value.items()])
    if isinstance(value, set | frozenset):
        return set_reply(proto, [encode(proto, item) for item in value])
    if isinstance(value, list | tuple):
        return array([encode(proto, item) for item in value])
    raise TypeError(f"a {type(value).__name__} is not a reply")
