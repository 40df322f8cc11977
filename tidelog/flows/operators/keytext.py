"""Keys of events: what an expression found in one, as text."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

LONGEST: Final = 128  # bytes of a key that is kept as it is; of a longer one its hash is kept


def key_text(found: Any) -> str:
    """One text for equal values, another for others: JSON, or its hash. ValueError: the value is none of JSON."""
    try:
        raw = msgspec.json.encode(found, order="deterministic")
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"{found!r:.100} can't be a key: {error}") from None
    if len(raw) > LONGEST:
        return f"#{hashlib.blake2b(raw, digest_size=16).hexdigest()}"  # no JSON begins with it
    return raw.decode()
