"""The bytes of keys and of names of spaces, in bulk.

    stored key    length of the space's name u8 | its name | bytes of the key

A key's bytes are those by which topics are partitioned: a str is its UTF-8, an int its decimal text, bytes are
themselves, a UUID its text. So 1 and "1" are one key, and keys are in the order of their bytes: "10" before "9".

Rule 1: the keys of a space are together, in order, and no space's prefix begins another's.
Rule 2: no key is cut or hashed, so ``scan`` has them all in order. A key of more than LONGEST bytes is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.jobs.store.errors import StateError, StateValueError
from tidelog.topics.partition import Key, canonical

LONGEST: Final = 430  # bytes of a key: LMDB takes 511, and the index by deadline has 8 + 1 + 64 more
_SPACE: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")

Keys: TypeAlias = Iterable[Key] | pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]


def prefix_of(space: str, where: str) -> bytes:
    """With what all stored keys of a space begin."""
    if not _SPACE.fullmatch(space):
        raise StateError(f"{where}: a space's name has 1 to 64 letters, digits, '_', '-' and '.', not {space!r}")
    return bytes((len(space),)) + space.encode()


def stored_keys(keys: Keys, prefix: bytes, where: str) -> list[bytes]:
    """The stored keys of ``keys``, in their order. StateValueError for what is no key, StateError for what has none."""
    try:
        made = _made(keys, prefix)
    except _KindError as error:
        raise StateError(f"{where}: {error}") from None
    except (TypeError, UnicodeEncodeError, pa.ArrowException) as error:
        raise StateValueError(f"{where}: {error}") from None
    if made and max(map(len, made)) > len(prefix) + LONGEST:
        longest = max(made, key=len)[len(prefix) :]
        text = f"a key of {len(longest)} bytes, {longest[:40]!r}...; at most {LONGEST} are allowed: use a hash of it"
        raise StateValueError(f"{where}: {text}")
    return made


class _KindError(TypeError):
    """Not one key is wrong, but all that is given."""


def _made(keys: Keys, prefix: bytes) -> list[bytes]:
    if isinstance(keys, (str, bytes)):
        raise _KindError(f"keys are a list, or an array, of keys, not one {type(keys).__name__}: {keys[:40]!r}")
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
    """Joined, encoded and split again, which takes a third of the time; unless a key has the separator."""
    start = prefix.decode()  # ASCII
    joined = start + f"\n{start}".join(keys)
    if joined.count("\n") == len(keys) - 1 and b"\n" not in prefix:
        return joined.encode().split(b"\n")
    return [prefix + key.encode() for key in keys]


def _arrow(keys: pa.Array | pa.ChunkedArray) -> list[bytes]:
    if keys.null_count:
        raise TypeError(f"{keys.null_count} of {len(keys)} keys are null: filter them, or fill them in")
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type) or pa.types.is_string_view(keys.type):
        keys = keys.cast(pa.large_binary())
    if not (pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type)):
        raise _KindError(f"a key is str, int or bytes, not {keys.type}")
    found: list[bytes] = keys.to_pylist()
    return found
