"""Text with placeholders for an event's meta: ``orders/{customer}``.

``{name}`` is ``meta["name"]``; ``{headers.host}`` is ``meta["headers"]["host"]``; ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from tidelog.flows.api.errors import RejectError

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.\-]*)\}|[{}]")


class Template:
    """A parsed template. Raises ValueError if braces do not match."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts: list[str | tuple[str, ...]] = []  # text, or a path in the meta
        at = 0
        for found in _PLACEHOLDER.finditer(text):
            self._parts.append(text[at : found.start()])
            at = found.end()
            if found[1] is not None:
                self._parts.append(tuple(found[1].split(".")))
            elif found[0] in ("{{", "}}"):
                self._parts.append(found[0][0])
            else:
                raise ValueError(f"{text!r}: a single {found[0]!r}; write {{name}} for a placeholder, {{{{ for a brace")
        self._parts.append(text[at:])

    @property
    def fixed(self) -> bool:
        """Return whether the template has no placeholders."""
        return all(isinstance(each, str) for each in self._parts)

    def fill(self, meta: Mapping[str, Any], escape: Callable[[str], str] = str) -> str:
        """Return the text for an event. Raises RejectError if a value is missing, or is neither text nor a number."""
        return "".join(each if isinstance(each, str) else escape(self._value(meta, each)) for each in self._parts)

    def _value(self, meta: Mapping[str, Any], way: tuple[str, ...]) -> str:
        found: Any = meta
        for name in way:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, (str, int, float)):
            problem = "is missing" if found is None else f"is {type(found).__name__}, not text or a number"
            raise RejectError(f"{self.text!r}: {'.'.join(way)!r} {problem} in the event's meta")
        return str(found)


def in_url(text: str) -> str:
    """Escape text for the path or the query of a URL. Raises RejectError if it would change the path's structure."""
    if text in ("", ".", ".."):
        raise RejectError(f"{text!r} can't be used in a URL")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise RejectError(f"{text!r} can't be used in a URL: {error}") from None
