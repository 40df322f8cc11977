r"""Converts names of fields to text and back. A field's name is any bytes; names of columns and map keys are UTF-8.

Each byte that is not part of UTF-8 is written as ``\xff``, with two lower-case hex digits. A backslash that would start
such an escape is written as ``\x5c``. All other names are unchanged. The conversion is therefore reversible.

    b"raw\xff"   raw\xff        b"a\\b"     a\b
    b"\\xff"     \x5cxff        b"\\xFF"    \xFF
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
LIKE_ONE: Final = re.compile(r"\\(?=x[0-9a-f]{2})")
NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # how surrogateescape represents such bytes


def as_text(name: bytes) -> str:
    """Convert a field's name to text."""
    text = LIKE_ONE.sub(r"\\x5c", name.decode("utf-8", "surrogateescape"))
    return NOT_UTF8.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)


def as_bytes(text: str) -> bytes:
    """Convert text to the field's name."""
    return ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())


def texts(names: pa.Array) -> pa.Array:
    """Convert a binary column of names to text."""
    try:
        made = names.cast(pa.string())
        if not pc.any(pc.match_substring(made, "\\x")).as_py():
            return made
    except pa.ArrowInvalid:
        pass
    distinct = names.dictionary_encode()
    dictionary = pa.array(map(as_text, distinct.dictionary.to_pylist()), pa.string())
    return dictionary.take(distinct.indices)
