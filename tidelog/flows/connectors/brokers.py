"""Options that the connectors of message brokers share: the URL, the credentials, TLS, and the time limit."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.options.units import PositiveDuration


class BrokerAddress(NamedTuple):
    """A parsed URL."""

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None
    path: str  # without the first slash, not escaped


class BrokerOptions(PayloadOptions, kw_only=True):
    """Options of connectors to a message broker."""

    schemes: ClassVar[Mapping[str, tuple[bool, int]]] = {}  # of URLs: (with TLS, port)

    url: str = ""  # The URL of the broker.
    username: str | None = None  # The user. `null`: that of the URL.
    password: str | None = None  # The password. `null`: that of the URL.
    tls: ClientTlsOptions | None = None  # TLS settings. `null`: the system's certificate authorities.
    request_timeout: PositiveDuration = PositiveDuration(10.0)
    # Time limit for connecting, and for each answer of the broker.

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.addresses:
            if self.tls is not None and not each.tls:
                secure = " or ".join(f"{name}://" for name, (tls, _) in self.schemes.items() if tls)
                raise ValueError(f"tls: url must begin with {secure}")
        if self.password is not None and not any(each.username for each in self.addresses) and self.username is None:
            raise ValueError("username is missing: there is a password")

    @property
    def addresses(self) -> list[BrokerAddress]:
        """The addresses of one or several URLs, separated by commas."""
        found = [self._address(each.strip()) for each in self.url.split(",")]
        if self.username is not None:
            found = [each._replace(username=self.username) for each in found]
        if self.password is not None:
            found = [each._replace(password=self.password) for each in found]
        return found

    def _address(self, text: str) -> BrokerAddress:
        """Parse a URL. Raises ValueError, without the URL, which may contain a password."""
        known = ", ".join(f"{each}://" for each in self.schemes)
        url = urlsplit(text)
        if url.scheme not in self.schemes or url.netloc.count("@") > 1:
            raise ValueError(f"url: it must begin with {known}; a password with @, :, / or # must be escaped")
        tls, default = self.schemes[url.scheme]
        try:
            port = url.port
        except ValueError:
            raise ValueError("url: the port is not a number; a password with @, :, / or # must be escaped") from None
        if url.query or url.fragment:
            raise ValueError("url: it must not have parameters; a password with @, :, / or # must be escaped")
        username, password = (None if each is None else unquote(each) for each in (url.username, url.password))
        host, path = url.hostname or "localhost", unquote(url.path[1:])
        return BrokerAddress(host, port or default, tls, username, password, path)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings. None: no TLS. Blocks. Raises OSError if a file can't be read."""
        return (self.tls or ClientTlsOptions()).context() if self.addresses[0].tls else None
