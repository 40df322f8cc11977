"""Functions that encode and hash strings, and that create IDs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac as keyed
import uuid as uuids
import zlib
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import xxhash

from tidelog.flows.expressions.ambient import random_bytes
from tidelog.flows.expressions.declare import STRING, TEXT, choice, function


class _Crc32:
    """CRC-32 with the interface of hashlib."""

    def __init__(self, data: bytes) -> None:
        self._found = zlib.crc32(data)

    def hexdigest(self) -> str:
        return f"{self._found:08x}"


_DIGESTS: Final[dict[str, Callable[[bytes], Any]]] = {
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha384": hashlib.sha384,
    "sha512": hashlib.sha512,
    "blake2b": hashlib.blake2b,
    "xxh64": xxhash.xxh64,
    "xxh128": xxhash.xxh128,
    "crc32": _Crc32,
}
_KEYED: Final = ("md5", "sha1", "sha256", "sha384", "sha512")


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _text(data: bytes, remedy: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the result is not UTF-8{remedy}") from None


@function(TEXT, choice(**_DIGESTS), example="hash('tea', 'xxh64')", result=xxhash.xxh64(b"tea").hexdigest())
def hash_(text: str | bytes, algorithm: Callable[[bytes], Any]) -> str:
    """Returns a hash in hexadecimal digits: ``md5``, ``sha1``, ``sha256``, ``sha384``, ``sha512``, ``blake2b``,
    ``xxh64``, ``xxh128``, or ``crc32``. Strings are hashed as UTF-8.
    """
    found: str = algorithm(_bytes(text)).hexdigest()
    return found


@function(
    TEXT, TEXT, choice(**{name: name for name in _KEYED}), example="hmac('tea', 'secret', 'sha1')",
    result="53f5af519e55dfb023323df6cce5e51bef90dfcb",
)  # fmt: skip
def hmac(text: str | bytes, key: str | bytes, algorithm: str) -> str:
    """Returns a hash with a key (HMAC) in hexadecimal digits: ``md5``, ``sha1``, ``sha256``, ``sha384``, or
    ``sha512``.
    """
    return keyed.new(_bytes(key), _bytes(text), algorithm).hexdigest()


@function(example="length(uuid())", result=36)
def uuid() -> str:
    """Returns a random UUID (version 4). An event that is retried gets another one: see ``uuid_v5``."""
    return str(uuids.UUID(bytes=random_bytes(16), version=4))


_NAMESPACES: Final = {
    "dns": uuids.NAMESPACE_DNS, "url": uuids.NAMESPACE_URL, "oid": uuids.NAMESPACE_OID, "x500": uuids.NAMESPACE_X500,
}  # fmt: skip


@function(STRING, STRING, example="uuid_v5('url', 'order-7')", result=str(uuids.uuid5(uuids.NAMESPACE_URL, "order-7")))
def uuid_v5(namespace: str, name: str) -> str:
    """Returns the UUID of a name (version 5), which is always the same. The namespace is ``dns``, ``url``, ``oid``,
    ``x500``, or a UUID.
    """
    found = _NAMESPACES.get(namespace)
    return str(uuids.uuid5(uuids.UUID(namespace) if found is None else found, name))


@function(TEXT, example="base64_encode('tea')", result="dGVh")
def base64_encode(text: str | bytes) -> str:
    """Encodes as base64."""
    return base64.b64encode(_bytes(text)).decode()


@function(STRING, example="base64_decode('dGVh')", result="tea")
def base64_decode(string: str) -> str:
    """Decodes base64 to a string. Padding is optional, and ``-`` and ``_`` may replace ``+`` and ``/``."""
    return _text(base64_decode_bytes(string), ": use base64_decode_bytes()")


@function(STRING, example="length(base64_encode(base64_decode_bytes('/w==')))", result=4)
def base64_decode_bytes(string: str) -> bytes:
    """Decodes base64 to bytes, for the codec ``binary`` and for functions that accept bytes."""
    plain = string.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"{string!r:.100} is not base64") from None


@function(TEXT, example="hex_encode('tea')", result="746561")
def hex_encode(text: str | bytes) -> str:
    """Encodes as hexadecimal digits."""
    return _bytes(text).hex()


@function(STRING, example="hex_decode('746561')", result="tea")
def hex_decode(string: str) -> str:
    """Decodes hexadecimal digits to a string."""
    return _text(bytes.fromhex(string))


@function(STRING, example="url_encode('a b/c')", result="a%20b%2Fc")
def url_encode(string: str) -> str:
    """Encodes a part of a URL. All characters other than letters, digits, and ``_.-~`` are escaped."""
    return quote(string, safe="")


@function(STRING, example="url_decode('a%20b')", result="a b")
def url_decode(string: str) -> str:
    """Decodes a part of a URL."""
    return _text(unquote_to_bytes(string))
