"""CORS: the access of pages of other origins, as defined by the Fetch standard.

Before a page of another origin sends JSON, a custom header or Authorization, the browser sends a preflight request
(OPTIONS, without credentials). The page can read an answer only if the answer names the page's origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

REMEMBERED: Final = 600  # s for which a browser asks no second time
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origins_of(given: Sequence[str]) -> list[str]:
    """Origins as browsers write them. Raises ValueError if one is not an origin."""
    return [_origin(each) for each in given]


def _origin(given: str) -> str:
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
    """Whether a browser asks what a page may send."""
    said = request.headers
    return request.method == "OPTIONS" and "Origin" in said and "Access-Control-Request-Method" in said


def preflight_response(request: web.BaseRequest, origins: Sequence[str], methods: Sequence[str]) -> web.Response:
    """The answer to a preflight of a page that is admitted."""
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
    """Headers of each answer to a request."""
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    origin = request.headers.get("Origin", "")
    if origin not in origins:
        return {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", "Vary": "Origin"}
