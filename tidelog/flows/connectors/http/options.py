"""Options that HTTP connectors share: authentication, the meaning of status codes, and content types."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import asdict

from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.options.structs import Struct

Code: TypeAlias = "int | str"  # 429, "5xx", "500-504"

_CLASS: Final = re.compile(r"([1-5])xx")
_RANGE: Final = re.compile(r"([1-5]\d\d)-([1-5]\d\d)")
DENIED: Final = frozenset((401, 403, 407))  # wrong credentials or missing rights: rarely a fault of the event
CONTENT_TYPES: Final = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "string": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "msgpack": "application/msgpack",
    "yaml": "application/yaml",
}


class HttpAuth(Struct):
    """The option ``auth``: ``{bearer: TOKEN}``, or ``{username: NAME, password: SECRET}``."""

    bearer: str | None = None
    username: str | None = None
    password: str | None = None

    def __post_init__(self) -> None:
        basic = self.username is not None or self.password is not None
        if basic == (self.bearer is not None):
            raise ValueError("auth is either bearer, or username and password")
        if basic and (self.username is None or self.password is None):
            raise ValueError("auth: username and password must be given together")
        if ":" in (self.username or ""):
            raise ValueError("auth: username must not contain a colon")
        if any(each < " " for each in (self.bearer or "")):
            raise ValueError("auth: bearer contains a control character, such as a line break")

    @property
    def header(self) -> str:
        """Return the value of ``Authorization``."""
        if self.bearer is not None:
            return f"Bearer {self.bearer}"
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def admits(self, header: str) -> bool:
        """Return whether a request with this ``Authorization`` is allowed, in constant time."""
        scheme, _, given = header.strip().partition(" ")
        wanted_scheme, _, wanted = self.header.partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))
        return same and scheme.lower() == wanted_scheme.lower()


class StatusCodeOptions(Struct):
    """The option ``statuses``: the meaning of status codes.

    Status codes in no list reject the event, except those in DENIED. If lists overlap, a single status code has
    priority over a range, and a range over a class.
    """

    ok: list[Code] = msgspec.field(default_factory=lambda: ["2xx"])
    retry: list[Code] = msgspec.field(default_factory=lambda: [408, 425, 429, "5xx"])
    reject: list[Code] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        seen: dict[range, str] = {}
        for name, codes in asdict(self).items():
            for each in codes:
                these = _codes(each)
                if seen.setdefault(these, name) != name:
                    raise ValueError(f"statuses: {each!r} is in {seen[these]} and in {name}")

    def denied(self) -> frozenset[int]:
        """Return the status codes of DENIED that are in no list."""
        listed = {code for codes in asdict(self).values() for each in codes for code in _codes(each)}
        return DENIED - listed

    def table(self) -> dict[int, Literal[0, 2, 3]]:
        """Return the meaning of each status code: OK, RETRY, or REJECT."""
        means: dict[str, Literal[0, 2, 3]] = {"ok": OK, "retry": RETRY, "reject": REJECT}
        found = [(_codes(each), means[name]) for name, codes in asdict(self).items() for each in codes]
        table: dict[int, Literal[0, 2, 3]] = dict.fromkeys(range(100, 600), REJECT)
        for codes, meaning in sorted(found, key=lambda each: len(each[0]), reverse=True):  # the narrowest last
            table |= dict.fromkeys(codes, meaning)
        return table


def _codes(given: Code) -> range:
    """Return the status codes. Raises ValueError if ``given`` is not a status code, a class or a range."""
    if isinstance(given, int) and 100 <= given <= 599:
        return range(given, given + 1)
    text = str(given)
    if found := _CLASS.fullmatch(text.lower()):
        return range(int(found[1]) * 100, int(found[1]) * 100 + 100)
    if (found := _RANGE.fullmatch(text)) and int(found[1]) <= int(found[2]):
        return range(int(found[1]), int(found[2]) + 1)
    raise ValueError(f"statuses: {given!r} is not a status code: use a form such as 429, 5xx or 500-504")


def content_type(given: str | Mapping[str, Any]) -> str:
    """Return the content type of a codec's messages."""
    name = given if isinstance(given, str) else next(iter(given))
    return CONTENT_TYPES.get(name, "application/octet-stream")
