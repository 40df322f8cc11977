"""Hides secrets in texts for people: logs, errors, status.

``redacted`` accepts any text with URLs in it. It hides the user and the password of each URL, and the secret parameters
of its query and its fragment. A parameter is secret because of its name (``token``, ``sig``, ``code``,
``X-Amz-Signature``), or if its value looks like a key. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_plus

HIDDEN: Final = "***"
KEY_LENGTH: Final = 20  # characters of a value that counts as a key, if it has letters and digits

#: Anywhere in a name. Each part is searched separately, which takes linear time, unlike a regular expression.
_PARTS: Final = (
    "pass", "token", "secret", "auth", "bearer", "credential", "cookie", "signature", "apikey", "accesskey", "private",
    "headers",
)  # fmt: skip
#: Whole words of the name of a parameter: ``sig``, ``x-functions-key``, ``sessionKey``.
_WORDS: Final = frozenset((
    "sig", "key", "code", "pwd", "pw", "pin", "otp", "jwt", "sas", "psk", "hmac", "sid", "session", "ticket",
    "assertion", "saml", "pat", "hash",
))  # fmt: skip
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SPLIT: Final = re.compile(r"(\s|[\"'<>])")
_SCHEME: Final = re.compile(r"[A-Za-z0-9+.\-]{1,40}\Z")
_SAID: Final = re.compile(r"[A-Za-z0-9+/_.~%=-]+")
_WEB: Final = ("http", "https", "ws", "wss")
_LONGEST: Final = 200  # characters of a name that are checked


def is_secret(name: str) -> bool:
    """Return whether an option of this name holds a secret: ``password``, ``sasl_secret``, ``api_key``."""
    plain = name[:_LONGEST].lower().replace("_", "").replace("-", "")
    return any(each in plain for each in _PARTS)


def redacted(text: str) -> str:
    """Return a text with the secrets of its URLs replaced by ``***``."""
    if "://" not in text:
        return text
    return "".join(_urls(each) if "://" in each else each for each in _SPLIT.split(text))


def _urls(text: str) -> str:
    """Redact a text without spaces: one URL, or several that are separated by commas."""
    first, *rest = text.split("://")
    made = [first]
    scheme = _scheme(first)
    for place, each in enumerate(rest):
        following = _scheme(each) if place + 1 < len(rest) else ""
        end = len(each) - len(following)
        between = each[end - 1 : end] if following and end else ""  # the comma before the next URL
        own = each[: end - len(between)]
        made += ["://", _url(own, web=scheme.lower() in _WEB), between, following]
        scheme = following
    return "".join(made)


def _scheme(text: str) -> str:
    """Return the scheme of a URL whose ``://`` follows this text."""
    found = _SCHEME.search(text[-40:])
    return "" if found is None else found[0]


def _url(text: str, *, web: bool) -> str:
    """Redact the part after ``://``. ``web``: / and ? end the host. Passwords in other URLs are often not escaped."""
    authority = text
    if web:
        for mark in "/?#":
            authority = authority.partition(mark)[0]
    _, at, host = authority.rpartition("@")
    rest = text[len(authority) :]
    if not web:
        host, mark, query = host.partition("?")
        rest = mark + query
    head, mark, fragment = rest.partition("#")
    path, asked, query = head.partition("?")
    shown = f"{HIDDEN}@{host}" if at else host
    return shown + path + asked + _parameters(query) + mark + _parameters(fragment)


def _parameters(query: str) -> str:
    return "&".join(map(_parameter, query.split("&"))) if "=" in query else query


def _parameter(given: str) -> str:
    if ";" in given and "=" in given.partition(";")[2]:
        return ";".join(map(_parameter, given.split(";")))
    name, equals, value = given.partition("=")
    secret = len(name) > _LONGEST or _secret_parameter(unquote_plus(name)) or _looks_secret(value)
    if not value or not secret:
        return given
    return f"{name}{equals}{HIDDEN}"


def _secret_parameter(name: str) -> bool:
    return is_secret(name) or any(each.lower() in _WORDS for each in _WORD.findall(name))


def _looks_secret(value: str) -> bool:
    """Return whether a value is long and a random mixture of letters and digits."""
    if len(value) < KEY_LENGTH or not _SAID.fullmatch(value[:_LONGEST]):
        return False
    digits = sum(map(str.isdigit, value[:_LONGEST]))
    return 3 <= digits <= len(value[:_LONGEST]) - 3
