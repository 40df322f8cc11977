"""Request bodies and errors of the HTTP API. ``openapi`` derives their schemas from the structures in this module."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import yaml
from aiohttp import web

from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.declare import FlowOptions
from tidelog.flows.files import yamltext
from tidelog.options.structs import Problems, Struct, read

BODY: Final = 256 << 10  # bytes
PROBLEMS: Final = 200  # maximum number of reported problems of a flow
BODY_WITHIN: Final = 30.0  # s: the timeout of a body
_JSON: Final = ("application/json",)
_FORM: Final = "application/x-www-form-urlencoded"  # the default content type of curl -d
_PATCH: Final = (*_JSON, _FORM, "text/plain", "application/merge-patch+json")
_YAML: Final = ("application/yaml", "application/x-yaml", "text/yaml")


S = TypeVar("S", bound=Struct)


class ConnectorBody(ConnectorOptions, kw_only=True, forbid_unknown_fields=False):
    """A connector, with the options of its type."""

    type: str


class FlowBody(FlowOptions, kw_only=True):
    """A flow, with the keys of flow files. ``read_flow`` parses it."""

    connect: list[str] | str
    connectors: dict[str, ConnectorBody | str] = msgspec.field(default_factory=dict)
    pipelines: dict[str, list[dict[str, Any] | str] | None] = msgspec.field(default_factory=dict)


class StatusBody(Struct):
    """The status that a flow or connector gets."""

    status: Literal["paused", "running"]


class ReplayBody(Struct):
    """The dead letters of a flow or of a topic."""

    flow: Annotated[str, msgspec.Meta(description="the flow with the dead letters")] | None = None
    topic: Annotated[str, msgspec.Meta(description="the topic with the dead letters, instead of flow")] | None = None
    ids: Annotated[list[str], msgspec.Meta(description="IDs of dead letters; default: all")] | None = None

    def __post_init__(self) -> None:
        if (self.flow is None) == (self.topic is None):
            raise ValueError("name either a flow or a topic")


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """Why a request failed. ``problems``: all errors of a flow."""

    code: int
    error: str
    problems: list[str] = []


class ApiError(Exception):
    """A request that gets an error response."""

    def __init__(self, code: int, error: str, problems: Sequence[str] = ()) -> None:
        super().__init__(error)
        self.code = code
        self.problems = list(problems)

    def answer(self) -> web.Response:
        headers = {"WWW-Authenticate": "Bearer"} if self.code == 401 else {}
        made = answer(ErrorBody(self.code, str(self), self.problems), self.code, headers)
        if self.code == 408:
            made.force_close()
        return made


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body, enc_hook=repr), status=status, content_type="application/json", headers=headers
    )


def wrong(error: FlowFileError, begin: str = "the flow is not valid") -> ApiError:
    """Return the error for an invalid flow. ``begin``: the beginning of its text."""
    shown = list(error.problems[:PROBLEMS])
    if len(error.problems) > PROBLEMS:
        shown.append(f"and {len(error.problems) - PROBLEMS} more")
    return ApiError(422, f"{begin}: {'; '.join(shown)}", shown)


async def body_of(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_WITHIN):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {BODY_WITHIN:g} s") from None


async def body_as(kind: type[S], request: web.Request) -> S:
    """Parse a body. Raises ApiError with all errors.

    The content type must be that of JSON, which web pages of other origins can't send without a preflight request. That
    of a PATCH is not checked strictly (curl -d), because browsers send no cross-origin PATCH without such a request.
    """
    return parsed(kind, await _json(request, _PATCH if request.method == "PATCH" else _JSON))


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


def parsed(kind: type[S], given: Any) -> S:
    """Convert a body or a query to its structure. Raises ApiError with all errors."""
    problems = Problems()
    if not isinstance(given, Mapping):
        problems.add("body", f"an object with {', '.join(kind.__struct_fields__)} is expected")
    elif (made := read(kind, given, "body", problems)) is not None:
        return made
    raise ApiError(422, "; ".join(f"{path}: {text}" for path, text in problems.found))


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
