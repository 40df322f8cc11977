"""Parameters of requests, each declared once: how it is parsed, and its schema and description for OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from tidelog.client.entries import StreamId
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.limits import DEFAULT_ENTRIES, PAGE_ENTRIES
from tidelog.options.start import StartPosition
from tidelog.options.structs import nearest
from tidelog.options.units import Duration, Size, excerpt

LONGEST: Final = 60.0  # s for which a request can wait for entries
KEY_BYTES: Final = 4096  # of a key or a group in a URL
EXTRA: Final = ("token",)  # a parameter of all requests: ``security`` reads it


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query. ``read`` raises ValueError with the reason."""

    name: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]
    description: str


def position(text: str) -> StartPosition:
    try:
        return StartPosition(text)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("start ")) from None


def number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"must be a number from {least} to {most}: {excerpt(text)}")

    return read


def duration(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = Duration.read(float(text) if text.replace(".", "", 1).isdigit() and text.isascii() else text)
        if not least <= seconds <= most:
            raise ValueError(f"must be from {least:g} s to {most:g} s: {excerpt(text)}")
        return float(seconds)

    return read


def size(text: str) -> int:
    return int(Size.read(int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text))


def time(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            f"must be a time with its zone such as 2026-01-31T12:00:00Z, or ms since 1970: {excerpt(text)}"
        ) from None
    return round(time.timestamp() * 1000)


def name(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    if not 0 < len(raw) <= KEY_BYTES:
        raise ValueError(f"must have 1 to {KEY_BYTES} bytes")
    return raw


def text(text: str) -> str:
    if len(text) > KEY_BYTES or not text.isprintable():
        raise ValueError(f"must be at most {KEY_BYTES} printable characters")
    return text


def flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"must be true or false: {excerpt(text)}")
    return text == "true"


MOST: Final = 2**53 - 1
TEXT: Final = {"type": "string"}
INTEGER: Final = {"type": "integer", "minimum": 0}
DURATION: Final = {"type": "string", "examples": ["5s", "1m30s", "200ms"]}

AFTER: Final = Parameter(
    "after", position, TEXT,
    "Entries after this position: `earliest`, `latest`, an ID, or a time with its zone. `earliest` by default,"
    " and `latest` for an event stream.",
)  # fmt: skip
LIMIT: Final = Parameter(
    "limit", number(1, PAGE_ENTRIES), {"type": "integer", "minimum": 1, "maximum": PAGE_ENTRIES,
    "default": DEFAULT_ENTRIES}, "Maximum number of entries. A page also ends after 1 MiB.",
)  # fmt: skip
WAIT: Final = Parameter(
    "wait", duration(0, LONGEST), DURATION, "If there are no entries, wait this long for the first one, at most 60s."
)  # fmt: skip


def read_query(request: web.Request, declared: Sequence[Parameter]) -> dict[str, Any]:
    """Return the values of the parameters in the URL. Raises ProblemError for unknown and invalid ones."""
    known = {each.name: each for each in declared}
    found: dict[str, Any] = {}
    raw = request.rel_url.raw_query_string
    for name, text in parse_qsl(raw, keep_blank_values=True, errors="surrogateescape", max_num_fields=None):
        parameter = known.get(name)
        if parameter is None:
            if name in EXTRA:
                continue
            raise _wrong(f"unknown parameter {excerpt(name)}; {nearest(name, [*known, *EXTRA])}")
        if name in found:
            raise _wrong(f"the parameter {name} is given twice")
        try:
            found[name] = parameter.read(text)
        except ValueError as error:
            raise _wrong(f"{name}: {error}") from None
    return found


def name_in_path(request: web.Request, variable: str, what: str) -> bytes:
    """Return a key or another name in the path, which is any bytes. Raises ProblemError."""
    template = request.match_info.route.resource
    parts = template.canonical.split("/") if template is not None else []
    raw = request.rel_url.raw_path.split("/")[parts.index(f"{{{variable}}}")]
    name = unquote_to_bytes(raw)
    if not 0 < len(name) <= KEY_BYTES:
        raise _wrong(f"{what} must have 1 to {KEY_BYTES} bytes")
    return name


def last_event_id(request: web.Request) -> StreamId | None:
    """Return the ID from which a client resumes an event stream. Raises ProblemError."""
    given = request.headers.get("Last-Event-ID", "")
    if not given:
        return None
    try:
        return StreamId.parse(given)
    except ValueError as error:
        raise _wrong(f"Last-Event-ID: {error}") from None


def _wrong(text: str) -> ProblemError:
    return ProblemError(400, "invalid-parameter", text)
