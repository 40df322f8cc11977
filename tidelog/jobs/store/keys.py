"""The bytes of keys and of the names of spaces, in bulk.

    stored key    length of the space's name u8 | its name | bytes of the key

The bytes of a key are those that determine a topic's partition: a str as UTF-8, an int as decimal text, bytes
unchanged, a UUID as text. So 1 and "1" are the same key, and keys are in the order of their bytes: "10" before "9".

Rule 1: The keys of a space are contiguous and ordered, and no space's prefix is the start of another's.
Rule 2: No key is truncated or hashed, so ``scan`` returns all of them in order. A key longer than LONGEST is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.jobs.store.errors import StateError, StateValueError
from tidelog.topics.partition import Key, canonical

LONGEST: Final = 430  # bytes of a key: LMDB allows 511, and the index by deadline needs 8 + 1 + 64 more
_SPACE: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")

Keys: TypeAlias = Iterable[Key] | pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]


def prefix_of(space: str, where: str) -> bytes:
    """Return the prefix of all stored keys of a space."""
    if not _SPACE.fullmatch(space):
        raise StateError(f"{where}: the name of a space must have 1 to 64 letters, digits, '_', '-' and '.': {space!r}")
    return bytes((len(space),)) + space.encode()


def stored_keys(keys: Keys, prefix: bytes, where: str) -> list[bytes]:
    """Return the stored keys of ``keys``, in their order.

    Raises StateValueError for an invalid key, and StateError if ``keys`` cannot contain keys.
    """
    try:
        made = _made(keys, prefix)
    except _KindError as error:
        raise StateError(f"{where}: {error}") from None
    except (TypeError, UnicodeEncodeError, pa.ArrowException) as error:
        raise StateValueError(f"{where}: {error}") from None
    if made and max(map(len, made)) > len(prefix) + LONGEST:
        longest = max(made, key=len)[len(prefix) :]
        text = f"a key of {len(longest)} bytes, {longest[:40]!r}...; at most {LONGEST} are allowed: use a hash"
        raise StateValueError(f"{where}: {text}")
    return made


class _KindError(TypeError):
    """The whole argument is invalid, not one key."""


def _made(keys: Keys, prefix: bytes) -> list[bytes]:
    if isinstance(keys, (str, bytes)):
        raise _KindError(f"keys must be a list or an array, not one {type(keys).__name__}: {keys[:40]!r}")
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        return [prefix + key for key in _arrow(keys)]
    given: list[Any] = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
    kinds = set(map(type, given))
    if kinds == {str}:
        return _texts(given, prefix)
    if kinds == {bytes}:
        return [prefix + key for key in given]
    if kinds == {int}:
        form = prefix.replace(b"%", b"%%") + b"%d"
        return [form % key for key in given]
    return [prefix + canonical(int(key) if isinstance(key, np.integer) else key) for key in given]


def _texts(keys: list[str], prefix: bytes) -> list[bytes]:
    """Encode all keys joined, then split them, in a third of the time; one by one if a key contains the separator."""
    start = prefix.decode()  # ASCII
    joined = start + f"\n{start}".join(keys)
    if joined.count("\n") == len(keys) - 1 and b"\n" not in prefix:
        return joined.encode().split(b"\n")
    return [prefix + key.encode() for key in keys]


def _arrow(keys: pa.Array | pa.ChunkedArray) -> list[bytes]:
    if keys.null_count:
        raise TypeError(f"{keys.null_count} of {len(keys)} keys are null: filter or replace them")
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type) or pa.types.is_string_view(keys.type):
        keys = keys.cast(pa.large_binary())
    if not (pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type)):
        raise _KindError(f"a key must be str, int or bytes, not {keys.type}")
    found: list[bytes] = keys.to_pylist()
    return found
