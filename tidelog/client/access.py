"""``Access``: where the servers are, and how to connect to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

DEFAULT_URL: Final = "redis://localhost:6379"
SENTINEL_MS: Final = 2000  # a Sentinel that is slower than this is passed over for the next one
_URL: Final = re.compile(r"(redis|rediss|unix)://.")


def is_url(text: str) -> bool:
    """Whether this is a URL that servers can be reached by: ``redis://``, ``rediss://`` (TLS) or ``unix://``."""
    return _URL.match(text) is not None


@dataclass(frozen=True)
class Access:
    """Where the servers are, and how to connect to them: what ``Wire``, ``Servers`` and ``Publisher`` are given.

    >>> Access(("redis://10.0.0.1", "redis://10.0.0.2"), password="secret", retries=10)

    With several URLs, requests go to the server among them that is the leader. With ``sentinels``, they go to the
    leader that one of these names for ``service``, and ``urls`` is not used. An ``Access`` can't be changed, and it can
    be pickled. ValueError where there is no URL, where ``is_url`` refuses one, or for Sentinels without a service.
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    username: str | None = None  # None: the one in the URL, if any
    password: str | None = field(default=None, repr=False)  # None: the one in the URL, if any
    tls: bool = False  # TLS for all URLs; rediss:// in one of them asks for it too
    ca_file: str | None = None  # the authority's certificate, PEM; None: the system's authorities
    cert_file: str | None = None  # the client's certificate, PEM
    key_file: str | None = None  # its key, PEM
    verify: bool = True  # False: any certificate is accepted
    connect_ms: int = 10_000  # for connecting
    read_ms: int = 120_000  # without a byte from the server
    retries: int = 60  # attempts after the first one: Sentinels take half a minute to notice a death, then fail over
    retry_ms: int = 1000  # between two attempts
    sentinels: tuple[str, ...] = ()  # URLs of Sentinels; rediss:// in one of them means TLS for it
    service: str = ""  # the name under which Sentinels know the leader
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)  # None: the one in the Sentinel's URL, if any
    #: What the caller's users call these fields, such as ``{"ca_file": "tlsCaFile"}``: error messages say it so.
    names: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.urls or not all(map(is_url, self.urls)):
            raise ValueError("urls must be redis://host:port, rediss://host:port or unix:///path, at least one")
        if not all(map(is_url, self.sentinels)) or bool(self.sentinels) != bool(self.service):
            raise ValueError("sentinels must be URLs, and need the name of a service")

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
        """Where leaders are looked for, without users and passwords."""
        if self.sentinels:
            return f"{self.service} of the Sentinels {', '.join(map(shown, self.sentinels))}"
        return ", ".join(map(shown, self.urls))

    def of_sentinel(self, url: str) -> Access:
        """How to connect to a Sentinel."""
        return replace(
            self, urls=(url,), username=self.sentinel_username, password=self.sentinel_password, tls=False,
            connect_ms=min(self.connect_ms, SENTINEL_MS), read_ms=min(self.read_ms, SENTINEL_MS), sentinels=(),
            service="",
        )  # fmt: skip

    def called(self, name: str) -> str:
        """What the field ``name`` is called in error messages."""
        return self.names.get(name, name)


def shown(url: str) -> str:
    """A URL as messages show it: without user and password, which may stand in its query too."""
    return url.rpartition("@")[2].partition("?")[0]
