"""Parses request bodies, and builds responses and errors: ``{"code": 404, "error": "there is no flow 'x'"}``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import yaml
from aiohttp import web

from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.files import yamltext
from tidelog.options.structs import Problems

BODY: Final = 256 << 10  # bytes
PROBLEMS: Final = 200  # maximum number of reported problems of a flow
BODY_WITHIN: Final = 30.0  # s: the timeout of a body
_JSON: Final = ("application/json",)
_FORM: Final = "application/x-www-form-urlencoded"  # the default content type of curl -d
_YAML: Final = ("application/yaml", "application/x-yaml", "text/yaml")


class ApiError(Exception):
    """A request that gets an error response."""

    def __init__(self, code: int, error: str, problems: Sequence[str] = ()) -> None:
        super().__init__(error)
        self.code = code
        self.problems = tuple(problems)

    def answer(self) -> web.Response:
        body: dict[str, Any] = {"code": self.code, "error": str(self)}
        if self.problems:
            body["problems"] = self.problems
        headers = {"WWW-Authenticate": "Bearer"} if self.code == 401 else {}
        made = answer(body, self.code, headers)
        if self.code == 408:
            made.force_close()
        return made


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body, enc_hook=repr), status=status, content_type="application/json", headers=headers
    )


def wrong(error: FlowFileError) -> ApiError:
    """Return the error for an invalid flow."""
    shown = list(error.problems[:PROBLEMS])
    if len(error.problems) > PROBLEMS:
        shown.append(f"and {len(error.problems) - PROBLEMS} more")
    return ApiError(422, "the flow is not valid: " + "; ".join(shown), shown)


async def body_of(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_WITHIN):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {BODY_WITHIN:g} s") from None


async def patch_body(request: web.Request) -> Any:
    """Parse JSON of a PATCH. The content type is not checked strictly (curl -d), because browsers send no cross-origin
    PATCH without a preflight request.
    """
    return await _json(request, (*_JSON, _FORM, "text/plain", "application/merge-patch+json"))


async def json_body(request: web.Request) -> Any:
    """Parse JSON with the content type of JSON, which web pages of other origins can't send without a preflight
    request.
    """
    return await _json(request, _JSON)


async def flow_body(request: web.Request, turns: asyncio.Lock) -> dict[str, Any]:
    """Parse a flow in JSON or YAML. ``turns`` serializes parsing, so that it does not delay the event loop too much."""
    if request.content_type in _YAML:
        problems = Problems()
        try:
            content = (await body_of(request)).decode()
            async with turns:
                value = (await asyncio.to_thread(yamltext.read, content, problems)).value
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ApiError(400, f"the body is not valid YAML: {error}") from None
        if problems:
            raise ApiError(400, "; ".join(f"{path}: {what}" for path, what in problems.found))
    else:
        value = await _json(request, (*_JSON, *_YAML))
    if not isinstance(value, dict):
        raise ApiError(422, "a flow is an object with connectors, pipelines and connect")
    return value


async def _json(request: web.Request, types: Sequence[str]) -> Any:
    if "Content-Type" in request.headers and request.content_type not in types:
        raise ApiError(415, f"the body's type is {request.content_type}: send Content-Type: {types[0]}")
    if "Content-Type" not in request.headers and _FORM not in types:
        raise ApiError(415, f"the body has no type: send Content-Type: {types[0]}")
    body = await body_of(request)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None


def status_of(body: Any) -> str:
    """Return the status in ``{"status": "paused"}``."""
    if not isinstance(body, dict) or "status" not in body:
        raise ApiError(422, 'the body must be {"status": "paused"} or {"status": "running"}')
    unknown = [name for name in body if name != "status"]
    if unknown:
        raise ApiError(422, f"only the status can be changed, not {', '.join(map(repr, unknown))}")
    status = body["status"]
    if status not in ("paused", "running"):
        raise ApiError(422, f"status is {status!r}: it can be set to 'paused' or 'running'")
    return str(status)


def number(request: web.Request, name: str, default: float | None, least: float, most: float) -> float | None:
    """Return a number from the query string."""
    given = request.query.get(name)
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ApiError(422, f"{name} is {given!r}: it must be a number from {least:g} to {most:g}")
    return value
