"""Names of hosts: which ones only this machine can reach, and the one in a ``Host`` header."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


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
