"""CORS: the access of pages of other origins, as defined by the Fetch standard.

Before a page of another origin sends JSON, a custom header or Authorization, the browser sends a preflight request
(OPTIONS, without credentials). The page can read a response only if the response names the page's origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

REMEMBERED: Final = 600  # s for which a browser caches the response to a preflight request
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(given: str) -> str:
    """Return an origin in the form of browsers. Raises ValueError if it is not one."""
    if given in ("*", "null"):  # null: pages from files, and frames in a sandbox
        return given
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not parts.scheme or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in given:
        raise ValueError(f"origins: {given!r} is not an origin such as https://shop.example.org, without a path, or *")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


def is_preflight(request: web.BaseRequest) -> bool:
    """Return whether the request is a preflight request."""
    headers = request.headers
    return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def preflight_response(request: web.BaseRequest, origins: Sequence[str], methods: Sequence[str]) -> web.Response:
    """Return the response to a preflight request of a page with access."""
    headers = {
        **headers_for(request, origins),
        "Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Max-Age": str(REMEMBERED),
    }  # fmt: skip
    if wanted := request.headers.get("Access-Control-Request-Headers"):
        headers["Access-Control-Allow-Headers"] = wanted
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def headers_for(request: web.BaseRequest, origins: Sequence[str]) -> Mapping[str, str]:
    """Return the CORS headers of the response to a request."""
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    origin = request.headers.get("Origin", "")
    if origin not in origins:
        return {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", "Vary": "Origin"}
