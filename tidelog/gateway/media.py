"""Content negotiation: the media types of requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.gateway.errors import ProblemError

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
_ALIASES: Final = {"application/ndjson": NDJSON, "application/jsonl": NDJSON, "application/jsonlines": NDJSON}
_RANGES: Final = 50  # media ranges of a header that are considered


def accepted(header: str, offered: Sequence[str]) -> str:
    """Return the offered media type that a client prefers, the first one in doubt. Raises ProblemError if none fits."""
    best, found = 0.0, ""
    ranges = [_range(each) for each in header.split(",")[:_RANGES]] if header.strip() else [("*/*", 1.0)]
    for kind in offered:
        matching = [(_precision(name), quality) for name, quality in ranges if _matches(name, kind)]
        quality = max(matching)[1] if matching else 0.0
        if quality > best:
            best, found = quality, kind
    if not found:
        raise ProblemError(406, "not-acceptable", f"Accept must permit one of these media types: {', '.join(offered)}.")
    return found


def content_type(header: str, known: Sequence[str]) -> str:
    """Return the media type of a body. Raises ProblemError if it is not one of ``known``."""
    name = header.partition(";")[0].strip().lower()
    name = _ALIASES.get(name, name)
    if name not in known:
        shown = f"not {name[:100]}" if name else "which is missing"
        raise ProblemError(415, "unsupported-media-type", f"Content-Type must be {' or '.join(known)}, {shown}.")
    return name


def _range(text: str) -> tuple[str, float]:
    name, _, options = text.partition(";")
    quality = 1.0
    for option in options.split(";"):
        key, _, value = option.partition("=")
        if key.strip().lower() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    name = name.strip().lower()
    return _ALIASES.get(name, name), quality


def _matches(name: str, kind: str) -> bool:
    return name in (kind, "*/*") or (name.endswith("/*") and kind.startswith(name[:-1]))


def _precision(name: str) -> int:
    return 0 if name == "*/*" else 1 if name.endswith("/*") else 2
