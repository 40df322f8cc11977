"""Restrictions for flows that are deployed over HTTP: a client that controls flows must not be able to run code or
access files.

An option that names a file is recognized by its name (``tls.ca``, ``unixsocket``), or in a URL: a socket's path,
``file://``, or a parameter such as ``?ssl_certfile=``. ``--allow-local`` removes the restrictions.

Rule: A URL is split as the connectors split it (``urlsplit``, which ignores line breaks and leading control
      characters), so that no form of a scheme is missed. Parameters of libpq are refused unless they are known to name
      no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tidelog.transport.access import Access

OPERATORS: Final = {"enrich": "read local files", "python": "run local code"}
CONNECTORS: Final = {
    "file": "access local files",
    "subprocess": "run programs",
    "stdio": "use the standard input and output of this process",
    "exit": "end this process, unless what is flow",
}
REFUSED: Final = "not permitted in flows from HTTP, unless the process was started with --allow-local"
_TLS: Final = ("ca", "cert", "key")  # options of ``tls`` that name files
_URLS: Final = ("url", "urls", "server", "servers")
_LOCAL: Final = ("unix", "file", "sqlite")  # schemes
_POSTGRES: Final = ("postgresql", "postgres")
_LIBPQ: Final = frozenset((
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host",
    "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts",
    "options", "password", "port", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslmode", "sslnegotiation",
    "target_session_attrs", "tcp_user_timeout", "user",
))  # fmt: skip
_FILES: Final = ("position", "credentials")  # options that name a file


def operator(kind: Any, given: Any = None) -> str:
    """Return why an operator with these options is refused, or an empty string."""
    if kind in OPERATORS:
        return f"operators of type {kind} {OPERATORS[kind]}: {REFUSED}"
    if kind != "branch" or not isinstance(given, Mapping):
        return ""
    within = given.get("operators")
    for each in within if isinstance(within, list) else ():
        name, options = next(iter(each.items()), ("", None)) if isinstance(each, Mapping) else (each, None)
        if refused := operator(name, options):
            return refused
    return "; ".join(f"{path[1:]}: {text}" for path, text in _files(given, ""))


def connector(kind: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return why a connector is refused, with the path in it."""
    if kind in CONNECTORS and not (kind == "exit" and given.get("what") == "flow"):
        yield "", f"connectors of type {kind} {CONNECTORS[kind]}: {REFUSED}"
        return
    yield from _files(given, "")


def _files(given: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        at = f"{path}.{name}"
        if isinstance(value, Mapping):
            for each in _TLS if name == "tls" else ():
                if value.get(each) is not None:
                    yield f"{at}.{each}", f"tls.{each} names a local file: {REFUSED}"
            yield from _files(value, at)
        elif name == "unixsocket" and value is not None:
            yield at, f"unixsocket names a local file: {REFUSED}"
        elif str(name) in _FILES and value is not None:
            yield at, f"{name} names a local file: {REFUSED}"
        elif str(name) in _URLS:
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, str) and names_file(each):
                    where = f"{at}[{number}]" if isinstance(value, list) else at
                    yield where, f"the URL names a local file: {REFUSED}"


def names_file(url: str) -> bool:
    """Return whether a URL names a local file. An invalid URL does not; it is rejected elsewhere."""
    try:
        parts = urlsplit(url.strip())
        scheme = parts.scheme.partition("+")[0]
        if scheme in _LOCAL:
            return True
        return _libpq_names_file(parts) if scheme in _POSTGRES else bool(Access.of(url).files)
    except ValueError:
        return False


def _libpq_names_file(url: SplitResult) -> bool:
    """Return whether a URL of PostgreSQL names a Unix socket, which is also the default, or another file."""
    given = dict(parse_qsl(url.query, keep_blank_values=True))
    hosts = given.get("host", url.netloc.rpartition("@")[2])
    return not given.keys() <= _LIBPQ or any(unquote(each)[:1] in ("", "/", "@", ":") for each in hosts.split(","))
