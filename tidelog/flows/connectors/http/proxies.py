"""Proxies of HTTP clients: those of the environment (``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``)."""

from __future__ import annotations

import base64
import urllib.request
from typing import NamedTuple

from yarl import URL


class HttpProxy(NamedTuple):
    """A proxy, without credentials in its URL."""

    url: URL
    header: str | None  # ``Proxy-Authorization``


def proxy_of(text: str) -> HttpProxy:
    """Parse the URL of a proxy. Raises ValueError, without the URL, which may contain a password."""
    try:
        url = URL(text if "://" in text else f"http://{text}")
        url.port  # noqa: B018 - it raises ValueError
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("proxy: it must have the form http://HOST:PORT")
    header = None
    if url.user is not None:
        header = "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return HttpProxy(url.origin(), header)


def proxy_for(server: URL, option: str) -> HttpProxy | None:
    """Return the proxy for a server. option: ``environment``, ``none``, or a URL. Raises ValueError if not valid."""
    if option == "none":
        return None
    if option != "environment":
        return proxy_of(option)
    known = urllib.request.getproxies_environment()
    found = known.get(server.scheme) or known.get("all")
    if found is None or urllib.request.proxy_bypass_environment(  # type: ignore[attr-defined]
        f"{server.host}:{server.port}", known
    ):
        return None
    return proxy_of(found)
