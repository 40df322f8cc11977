"""Templates for destinations that give characters a meaning: URLs, paths of files, headers.

    in URLs      values are quoted; a value can't be empty, and no segment of the path can become ``.`` or ``..``
    in paths     values are quoted where they contain ``/``, ``%`` or control characters, so that a value is never more
                 than a part of one name; no name can become ``.`` or ``..``, or be longer than 255 bytes
    in headers   an event whose value contains a line break or another control character is rejected
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from tidelog.flows.api.errors import RejectError
from tidelog.flows.connectors.templates import Template

LONGEST_NAME: Final = 255  # bytes of the name of a file in most file systems

_UNSAFE: Final = re.compile(r"[/%\\\x00-\x1f\x7f]")


def url_template(text: str) -> Template:
    """Return a template for the path and the query of a URL. Raises ValueError if it is not valid."""
    template = Template(text, in_url)
    start = template.prefix.rfind("/") + 1
    template.check = lambda found: _check_url(found[start:])
    return template


def path_template(text: str) -> Template:
    """Return a template for the path of a file. Raises ValueError if it is not valid."""
    template = Template(text, in_path)
    start = template.prefix.rfind("/") + 1  # the directories before it belong to the template, such as ../logs/
    template.check = lambda found: _check_path(found[start:])
    return template


def header_template(text: str) -> Template:
    """Return a template for the value of a header. Raises ValueError if it is not valid."""
    return Template(text, check=_check_header)


def in_url(text: str) -> str:
    """Escape text for the path or the query of a URL. Raises RejectError if it would change the path's structure."""
    if text in ("", ".", ".."):
        raise RejectError(f"{text!r} can't be used in a URL")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise RejectError(f"{text!r} can't be used in a URL: {error}") from None


def in_path(text: str) -> str:
    """Escape text for a part of the name of a file. Raises RejectError if it is empty."""
    if not text:
        raise RejectError("an empty text can't be used in a path")
    return text if _UNSAFE.search(text) is None else _UNSAFE.sub(lambda found: quote(found[0], safe=""), text)


def is_bad_header(value: str) -> bool:
    """Return whether a header's value is not valid because it contains a line break or another control character."""
    return any((each < " " and each != "\t") or each == "\x7f" for each in value)


def _check_url(text: str) -> None:
    if any(each in (".", "..") for each in text.partition("?")[0].split("/")):
        raise RejectError(f"{text!r} contains . or .. as a path segment")


def _check_path(text: str) -> None:
    for name in text.split("/"):
        if name in (".", ".."):
            raise RejectError(f"{text!r:.200} contains . or .. as a name")
        if len(name) * 4 > LONGEST_NAME and len(name.encode()) > LONGEST_NAME:
            raise RejectError(f"{text!r:.200}: a name is longer than {LONGEST_NAME} bytes")


def _check_header(text: str) -> None:
    if is_bad_header(text):
        raise RejectError(f"{text!r:.200} contains a control character, which a header must not contain")
