"""Parses the URLs of servers, for all programs.

    redis://[user[:password]@]host[:port][/db][?options]
    rediss://...                                          the same over TLS
    unix://[[user]:password@]/path/of/socket[?options]

The names and values of options are those of redis-py. An option that is not in OPTIONS is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

PORT: Final = 6379
_SCHEMES: Final = re.compile(r"(redis|rediss|unix)://.")
_FALSE: Final = frozenset({"0", "f", "false", "n", "no"})
_TRUE: Final = frozenset({"1", "t", "true", "y", "yes"})


class AddressError(ValueError):
    """An invalid URL. The text gives the reason, without user and password."""


def is_url(text: str) -> bool:
    """Return whether this looks like the URL of a server: ``redis://``, ``rediss://`` (TLS) or ``unix://``."""
    return _SCHEMES.match(text) is not None


def without_credentials(url: str) -> str:
    """Return a URL for messages: without user and password, which its query can contain as well."""
    before, _, query = url.partition("?")
    if "@" in query and "@" not in before:  # ambiguous: a ? in a password, or an @ in the query
        return f"{before.partition('://')[0]}://***"
    return before.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of one URL. None: the URL does not contain that part."""

    host: str  # "" for a unix socket
    port: int
    path: str  # of a unix socket, else ""
    tls: bool
    username: str | None = None
    password: str | None = None
    db: int | None = None
    ca_file: str | None = None
    ca_path: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    verify: bool | None = None
    check_hostname: bool | None = None
    connect_ms: int | None = None
    read_ms: int | None = None
    protocol: int | None = None  # version of RESP, for ``Client``, whose results do not depend on it

    @property
    def files(self) -> tuple[str, ...]:
        """The local files that the URL names."""
        return tuple(filter(None, (self.path, *(getattr(self, name) for name in _FILES))))

    @property
    def tls_options(self) -> list[str]:
        """Names of the options in the URL that are for TLS only."""
        return [name for name, (field, _) in OPTIONS.items() if name in _FOR_TLS and getattr(self, field) is not None]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("a whole number")
    return int(text)


def _milliseconds(text: str) -> int:
    try:
        ms = round(float(text) * 1000)
    except (ValueError, OverflowError):
        ms = 0
    if ms < 1:
        raise ValueError("a number of seconds")
    return ms


def _flag(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError("true or false")


def _verified(text: str) -> bool:
    if text not in ("none", "optional", "required"):
        raise ValueError("none, optional or required")
    return text != "none"  # with "optional", a client also verifies a certificate that it receives


def _filled(text: str) -> str:
    return text


def _protocol(text: str) -> int:
    if text not in ("2", "3"):
        raise ValueError("2 or 3")
    return int(text)


#: By name in a URL: the field of Address, and its parser. The text of the parser's ValueError describes valid values.
OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "username": ("username", _filled),
    "password": ("password", _filled),
    "db": ("db", _number),
    "ssl_ca_certs": ("ca_file", _filled),
    "ssl_ca_path": ("ca_path", _filled),
    "ssl_certfile": ("cert_file", _filled),
    "ssl_keyfile": ("key_file", _filled),
    "ssl_password": ("key_password", _filled),
    "ssl_cert_reqs": ("verify", _verified),
    "ssl_check_hostname": ("check_hostname", _flag),
    "socket_connect_timeout": ("connect_ms", _milliseconds),
    "socket_timeout": ("read_ms", _milliseconds),
    "protocol": ("protocol", _protocol),
}
_FOR_TLS: Final = frozenset(name for name in OPTIONS if name.startswith("ssl_"))
_FILES: Final = ("ca_file", "ca_path", "cert_file", "key_file")
#: Fields that must have the same value in all URLs of one program, with the names of their options.
COMMON: Final = {field: name for name, (field, _) in OPTIONS.items() if name not in ("username", "password")}


@lru_cache(256)
def address_of(url: str) -> Address:
    """Parse a URL. Raises AddressError if it is not a URL, or if an option is unknown or malformed."""
    if not is_url(url):
        raise AddressError(
            f"{without_credentials(url)!r} is not the URL of a server: it must be redis://host:port, rediss://host:port"
            " or unix:///path"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may quote a part of the password
        text = "host and port can't be parsed: write / ? # @ and % in a password as %2F %3F %23 %40 %25"
        raise _wrong(url, text) from None
    if parts.fragment or "#" in url:
        raise _wrong(url, "it contains a #, which must be written as %23")
    unix = parts.scheme == "unix"
    if unix and not parts.path.strip("/"):
        raise _wrong(url, "the path of the socket is missing")
    found = Address(
        "" if unix else unquote(parts.hostname or "localhost"), 0 if unix else port if port is not None else PORT,
        unquote(parts.path) if unix else "", parts.scheme == "rediss",
        unquote(parts.username) if parts.username else None, unquote(parts.password) if parts.password else None,
    )  # fmt: skip
    said = {name: value for name in ("username", "password") if (value := getattr(found, name)) is not None}
    if not unix and parts.path.strip("/"):
        said["db"] = _db(url, parts)
    for name, value in options_of(url, parts.query).items():
        if said.get(name, value) != value:
            raise _wrong(url, f"{COMMON.get(name, name)} is given twice, with different values")
        said[name] = value
    return replace(found, **said)


def options_of(url: str, query: str) -> dict[str, Any]:
    """Parse the options of a query to fields of Address. ``url`` is for messages. Raises AddressError."""
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise _wrong(url, f"unknown option {name!r}: known are {', '.join(OPTIONS)}")
        field, read = OPTIONS[name]
        if field in found:
            raise _wrong(url, f"the option {name} is given twice")
        if not text:
            raise _wrong(url, f"the option {name} is empty")
        try:
            found[field] = read(text)
        except ValueError as error:
            raise _wrong(url, f"the option {name} must be {error}") from None
    return found


def _db(url: str, parts: SplitResult) -> int:
    text = unquote(parts.path).strip("/")
    try:
        return _number(text)
    except ValueError:
        said = "the path" if "@" in text else repr(text)  # there may be a / in the password
        raise _wrong(url, f"{said} is not the number of a database") from None


def _wrong(url: str, why: str) -> AddressError:
    return AddressError(f"{without_credentials(url)}: {why}")
