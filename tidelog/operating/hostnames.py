"""Where an HTTP request comes from: addresses of this machine, the ``Host`` header, and the headers of proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def is_local(host: str) -> bool:
    """Return whether only this machine can connect to a listening address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(given: str) -> str:
    """Return the host in a ``Host`` header; empty if it is not valid."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy has forwarded a request. Its client is then not necessarily on this machine."""
    return any(name in headers for name in _FORWARDED)
