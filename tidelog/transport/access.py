"""``Access``: the addresses of the servers, and the settings for connections to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from urllib.parse import unquote

from tidelog.transport.address import (
    COMMON,
    OPTIONS,
    Address,
    AddressError,
    address_of,
    is_url,
    options_of,
    without_credentials,
)

__all__ = ["DEFAULT_URL", "Access", "is_url", "without_credentials"]

DEFAULT_URL: Final = "redis://localhost:6379"
SENTINEL_MS: Final = 2000  # a Sentinel that takes longer is skipped
SENTINEL_PORT: Final = 26379
_NEXT: Final = re.compile(r",\s*(?=\w+://)")  # between two URLs; other commas may be part of a password
# a URL with several hosts; a comma in a password, or in the query, separates no hosts
_HOSTS: Final = re.compile(r"(rediss?://(?:[^/?#]*@)?)([^/?#@]*,[^/?#@]*)((?:[/?].*)?)")
_SENTINELS: Final = re.compile(r"(rediss?)\+sentinel://")


@dataclass(frozen=True)
class Access:
    """The addresses of servers, and the settings for connections to them.

    Clients, topics, apps, the Spark source and engines accept one.

    >>> Access(("redis://10.0.0.1", "redis://10.0.0.2"), password="secret", retries=10)
    >>> Access(("rediss://10.0.0.1",), ca_file="ca.pem", cert_file="me.pem", key_file="me.key")
    >>> Access.of("redis+sentinel://10.0.0.1,10.0.0.2/tide?ssl_ca_certs=ca.pem")

    With several URLs, requests go to the leader among their servers. With ``sentinels``, they go to the leader that
    these Sentinels name for ``service``, and ``urls`` is not used. Options of one URL, except user and password, apply
    to all of them. Fields below take precedence over options of URLs. An ``Access`` is immutable and can be pickled.

    Raises ValueError if there is no URL, if a URL is malformed or has an unknown option, if options contradict each
    other, or if Sentinels are given without a service.
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    username: str | None = None  # None: the one in the URL, if any
    password: str | None = field(default=None, repr=False)  # None: the one in the URL, if any
    tls: bool = False  # TLS for all URLs; rediss:// in one of them has the same effect
    ca_file: str | None = None  # the authority's certificate, PEM; None: the system's authorities
    cert_file: str | None = None  # the client's certificate, PEM
    key_file: str | None = None  # its key, PEM; None: it is in ``cert_file``
    verify: bool = True  # False: any certificate is accepted
    connect_ms: int = 10_000  # timeout for connecting
    read_ms: int = 120_000  # maximum time without a byte from the server
    retries: int = 60  # attempts after the first one: Sentinels take half a minute to detect a failure
    retry_ms: int = 1000  # delay between two attempts
    sentinels: tuple[str, ...] = ()  # URLs of Sentinels; rediss:// in one of them means TLS for it
    service: str = ""  # the name by which the Sentinels identify the leader
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)  # None: the one in the Sentinel's URL, if any
    key_password: str | None = field(default=None, repr=False)  # of ``key_file``
    check_hostname: bool = True  # False: the certificate may be for another name
    #: Names of these fields for the caller's users, such as ``{"ca_file": "tlsCaFile"}``. Error messages use them.
    names: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.urls or not all(map(is_url, self.urls)):
            raise ValueError("urls must be redis://host:port, rediss://host:port or unix:///path, at least one")
        if not all(map(is_url, self.sentinels)) or bool(self.sentinels) != bool(self.service):
            raise ValueError("sentinels must be URLs, and need the name of a service")
        for url in (*self.urls, *self.sentinels):
            address_of(url)
        for name in ("connect_ms", "read_ms"):
            if name in self.options and getattr(self, name) == _DEFAULTS[name]:
                object.__setattr__(self, name, self.options[name])
        self._check()

    def _check(self) -> None:
        common = self.options
        if self.key_file and not self.cert_file:
            raise ValueError(f"{self.called('key_file')} needs {self.called('cert_file')}")
        if "key_file" in common and "cert_file" not in common and not self.cert_file:
            raise ValueError(f"{self.places}: ssl_keyfile needs ssl_certfile")
        if not self.secure and not self.sentinels:
            given = [self.called(name) for name in _FOR_TLS if getattr(self, name)]
            given += [option for url in self.urls for option in address_of(url).tls_options]
            for option in given:
                raise ValueError(f"{self.places}: {option} is for TLS: write rediss://")

    @classmethod
    def of(cls, text: str, **settings: Any) -> Access:
        """Parse a text of the form that ``--url`` and ``url=`` accept everywhere; ``settings``: further fields.

            redis://host:port                   one server; rediss:// and unix:// as well
            redis://host:port,host:port         the leader among these servers
            redis://host:port,redis://host:port     the same, with users, passwords and options of their own
            redis+sentinel://host:port,host:port/service      the leader that these Sentinels name

        The last form, and rediss+sentinel:// for TLS, accept user, password and options, which apply to the servers.
        ``sentinel_username`` and ``sentinel_password`` apply to the Sentinels.
        """
        if _SENTINELS.match(text) is None:
            return cls(tuple(url for each in _NEXT.split(text.strip()) for url in _each_host(each.strip())), **settings)
        return cls(**_sentinels(text) | settings)

    @property
    def options(self) -> dict[str, Any]:
        """The options of all URLs. Each applies to all URLs. Raises ValueError if two URLs have different values."""
        found: dict[str, Any] = {}
        for url in () if self.sentinels else self.urls:
            address = address_of(url)
            for name, option in COMMON.items():
                value = getattr(address, name)
                if value is not None and found.setdefault(name, value) != value:
                    raise ValueError(f"{self.places}: {option} has different values in two of the URLs")
        return found

    def address(self, url: str) -> Address:
        """Return the settings for ``url``, which need not be one of ``urls``: its own, completed by this Access."""
        said = address_of(url)
        common = self.options | {name: value for name in COMMON if (value := getattr(said, name)) is not None}
        given: dict[str, Any] = {
            "username": self.username, "password": self.password, "ca_file": self.ca_file, "cert_file": self.cert_file,
            "verify": None if self.verify else False, "check_hostname": None if self.check_hostname else False,
        }  # fmt: skip
        made = replace(said, **common | {name: value for name, value in given.items() if value is not None})
        if self.cert_file:  # with its own key: the key of another certificate would not match
            made = replace(made, key_file=self.key_file, key_password=self.key_password)
        return replace(
            made, tls=not made.path and self.secure, verify=made.verify is not False,
            check_hostname=made.check_hostname is not False, connect_ms=self.connect_ms, read_ms=self.read_ms,
        )  # fmt: skip

    def has(self, other: Access) -> bool:
        """Return whether this Access includes all servers, and the user and options, of ``other``."""
        if self == other:
            return True
        if self.sentinels or other.sentinels:
            return (self.sentinels, self.service) == (other.sentinels, other.service) and other == Access(
                sentinels=other.sentinels, service=other.service, tls=other.tls
            )
        ours = {(each.host, each.port, each.path): each for each in map(self.address, self.urls)}
        for url in other.urls:
            said = address_of(url)
            mine = ours.get((said.host, said.port, said.path))
            if mine is None or (said.tls != mine.tls and url not in self.urls):
                return False
            for name in _SAID:
                value = getattr(said, name)
                if value is not None and value != getattr(mine, name):
                    return False
        return other == Access(other.urls)

    @property
    def secure(self) -> bool:
        """Whether connections use TLS."""
        return self.tls or (not self.sentinels and any(url.startswith("rediss:") for url in self.urls))

    @property
    def movable(self) -> bool:
        """Whether there is more than one server that may lead."""
        return bool(self.sentinels) or len(self.urls) > 1

    @property
    def places(self) -> str:
        """The servers or Sentinels, for messages: without users and passwords."""
        if self.sentinels:
            return f"{self.service} of the Sentinels {', '.join(map(without_credentials, self.sentinels))}"
        return ", ".join(map(without_credentials, self.urls))

    def of_sentinel(self, url: str) -> Access:
        """Return the settings for a connection to a Sentinel."""
        plain: dict[str, Any] = {} if address_of(url).tls else dict.fromkeys(_FOR_TLS)
        return replace(
            self, urls=(url,), username=self.sentinel_username, password=self.sentinel_password, tls=False,
            connect_ms=min(self.connect_ms, SENTINEL_MS), read_ms=min(self.read_ms, SENTINEL_MS), sentinels=(),
            service="", **plain,
        )  # fmt: skip

    def single_attempt(self, ms: int) -> Access:
        """Return these settings for requests that must fail quickly: no retries, and timeouts of at most ``ms``."""
        return replace(self, retries=0, connect_ms=min(self.connect_ms, ms), read_ms=min(self.read_ms, ms))

    @property
    def files(self) -> tuple[str, ...]:
        """The local files that connections use, such as certificates and sockets."""
        named = {file for url in (*self.urls, *self.sentinels) for file in address_of(url).files}
        own = {file for file in (self.ca_file, self.cert_file, self.key_file) if file}
        return tuple(sorted(named | own))

    def called(self, name: str) -> str:
        """Return the name of a field in error messages."""
        return self.names.get(name, name)


def _sentinels(text: str) -> dict[str, Any]:
    """Parse a URL of Sentinels into fields. Raises AddressError if it is malformed or has unknown options."""
    matched = _SENTINELS.match(text)
    assert matched is not None  # noqa: S101 - the caller has checked it
    scheme = matched[1]
    before, _, query = text[matched.end() :].partition("?")
    user, at, places = before.rpartition("@")
    hosts, _, service = places.partition("/")
    if not hosts or not service or "/" in service:
        raise AddressError("a URL of Sentinels is redis+sentinel://host:port,host:port/service")
    name, _, password = user.partition(":")
    found: dict[str, Any] = {}
    own: list[str] = []
    for each in query.split("&"):
        option, _, value = each.partition("=")
        if option in ("sentinel_username", "sentinel_password"):
            found[option] = unquote(value.replace("+", " "))
        else:
            own.append(each)
    said = options_of(text, "&".join(own))
    for option, (what, _) in OPTIONS.items():
        if what in said and what not in _FIELDS:
            raise AddressError(f"{without_credentials(text)}: {option} is not possible with Sentinels")
    if at:
        found |= {"username": unquote(name) or None, "password": unquote(password) or None}
    urls = tuple(f"{scheme}://{_with_port(each.strip())}" for each in hosts.split(","))
    return found | said | {"sentinels": urls, "service": unquote(service), "tls": scheme == "rediss"}


def _each_host(url: str) -> list[str]:
    """Return a URL for each host of a URL with several hosts, with the same user, password and options."""
    found = _HOSTS.fullmatch(url)
    if found is None:
        return [url]
    before, hosts, after = found.groups()
    return [f"{before}{host.strip()}{after}" for host in hosts.split(",")]


def _with_port(host: str) -> str:
    return host if re.search(r":\d+$", host) and not host.endswith("]") else f"{host}:{SENTINEL_PORT}"


_FOR_TLS: Final = ("ca_file", "cert_file", "key_file", "key_password")
#: The fields of a URL that are compared with those of an Access, if the URL has them.
_SAID: Final = tuple(each.name for each in fields(Address) if each.name not in ("tls", "connect_ms", "read_ms"))
_FIELDS: Final = frozenset(each.name for each in fields(Access))
_DEFAULTS: Final = {each.name: each.default for each in fields(Access)}
