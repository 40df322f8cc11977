"""Text with places for an event's meta: ``orders/{customer}``.

``{name}`` is ``meta["name"]``; ``{headers.host}`` is ``meta["headers"]["host"]``; ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from tidelog.flows.api.errors import RejectError

_PLACE: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.\-]*)\}|[{}]")


class Template:
    """ValueError: braces that don't fit together."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts: list[str | tuple[str, ...]] = []  # text, or a way into the meta
        at = 0
        for found in _PLACE.finditer(text):
            self._parts.append(text[at : found.start()])
            at = found.end()
            if found[1] is not None:
                self._parts.append(tuple(found[1].split(".")))
            elif found[0] in ("{{", "}}"):
                self._parts.append(found[0][0])
            else:
                raise ValueError(f"{text!r}: a lone {found[0]!r}; a place is {{name}}, a brace is written twice")
        self._parts.append(text[at:])

    @property
    def fixed(self) -> bool:
        """Whether it has no places."""
        return all(isinstance(each, str) for each in self._parts)

    def fill(self, meta: Mapping[str, Any], escape: Callable[[str], str] = str) -> str:
        """RejectError: the meta lacks something, or has what is no text or number there."""
        return "".join(each if isinstance(each, str) else escape(self._value(meta, each)) for each in self._parts)

    def _value(self, meta: Mapping[str, Any], way: tuple[str, ...]) -> str:
        found: Any = meta
        for name in way:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, (str, int, float)):
            problem = "is missing" if found is None else f"is {type(found).__name__}, no text or number"
            raise RejectError(f"{self.text!r}: {'.'.join(way)!r} {problem} in the event's meta")
        return str(found)


def in_url(text: str) -> str:
    """Escaped for any place in a URL's path or query. RejectError: it would lead out of its place in the path."""
    if text in ("", ".", ".."):
        raise RejectError(f"{text!r} can't stand in a URL")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise RejectError(f"{text!r} can't stand in a URL: {error}") from None
