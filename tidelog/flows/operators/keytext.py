"""The result of a JMESPath expression as text, for use as a key."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

LONGEST: Final = 128  # bytes; a longer key is replaced by its hash


def key_text(found: Any) -> str:
    """Return the same text for equal values, and different texts for others: JSON, or its hash. Raises ValueError if
    the value has no JSON.
    """
    try:
        raw = msgspec.json.encode(found, order="deterministic")
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"{found!r:.100} can't be a key: {error}") from None
    if len(raw) > LONGEST:
        return f"#{hashlib.blake2b(raw, digest_size=16).hexdigest()}"  # JSON never begins with #
    return raw.decode()
