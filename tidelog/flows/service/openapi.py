"""The routes of the HTTP API in one table, and the OpenAPI document, which is derived from it and ``requestbodies``."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import tidelog
from tidelog.flows.service.requestbodies import ErrorBody, FlowBody, ReplayBody, StatusBody
from tidelog.options.schemas import REF, schemas
from tidelog.options.structs import Struct


class ApiRoute(NamedTuple):
    """One route. ``handler``: the name of a method of ``FlowApi``."""

    method: str
    path: str
    handler: str
    summary: str
    more: tuple[int, ...] = ()  # status codes besides those that the method, the path and the body imply
    query: tuple[str, ...] = ()
    body: type[Struct] | None = None

    @property
    def codes(self) -> list[int]:
        """The status codes of the responses."""
        found = {201 if self.method == "POST" and "{" in self.path else 200, *self.more}
        if self.body is not None:
            found |= {400, 415, 422}
        if "{" in self.path and self.body is not FlowBody:
            found.add(404)
        return sorted(found)


ROUTES: Final = (
    ApiRoute("GET", "/v1/version", "version", "The version of tidelog."),
    ApiRoute("GET", "/v1/status", "status", "The number of flows by status; 503 unless all are running.", (503,)),
    ApiRoute("GET", "/v1/live", "live", "200 as long as the process responds. Needs no token."),
    ApiRoute("GET", "/v1/ready", "ready", "503 while a flow has failed or a connector has not connected; lists them.",
             (503,)),
    ApiRoute("GET", "/v1/overview", "overview", "The figures of all flows, and why they make no progress."),
    ApiRoute("GET", "/v1/warnings", "warnings", "The recent warnings of the process or of a flow.", (404,), ("flow",)),
    ApiRoute("GET", "/v1/flows", "flows", "All flows."),
    ApiRoute("GET", "/v1/flows/{flow}", "flow", "A flow: its status, its connectors."),
    ApiRoute("PATCH", "/v1/flows/{flow}", "patch_flow", "Pause or resume a flow or an instance.",
             (409, 503), (), StatusBody),
    ApiRoute("POST", "/v1/flows/{flow}", "post_flow", "Deploy a flow.", (409, 503), (), FlowBody),
    ApiRoute("PUT", "/v1/flows/{flow}", "put_flow",
             "Deploy a flow; an existing flow with this name is drained and replaced.", (201, 409, 503), (), FlowBody),
    ApiRoute("DELETE", "/v1/flows/{flow}", "delete_flow",
             "Drain and delete a flow; reports the settled and abandoned events.", (409, 503), ("timeout",)),
    ApiRoute("POST", "/v1/reload", "reload",
             "Read the flow files again; changed flows are drained and replaced.", (409, 422, 503)),
    ApiRoute("GET", "/v1/flows/{flow}/connectors", "connectors", "Its connectors."),
    ApiRoute("GET", "/v1/flows/{flow}/connectors/{connector}", "connector",
             "A connector: status, connectivity, neighbors."),
    ApiRoute("PATCH", "/v1/flows/{flow}/connectors/{connector}", "patch_connector", "Pause or resume a connector.",
             (409, 503), (), StatusBody),
    ApiRoute("GET", "/v1/flows/{flow}/pipelines", "pipelines", "Its pipelines."),
    ApiRoute("GET", "/v1/flows/{flow}/pipelines/{pipeline}", "pipeline",
             "A pipeline: operators, counters, its graph."),
    ApiRoute("GET", "/v1/flows/{flow}/graph", "graph", "All entities and channels, with counters."),
    ApiRoute("GET", "/v1/flows/{flow}/breaker", "breaker", "The reasons for which each source does not send."),
    ApiRoute("GET", "/v1/flows/{flow}/unsettled", "unsettled",
             "Events in flight: number, age of the oldest, positions."),
    ApiRoute("GET", "/v1/flows/{flow}/history", "history", "Its figures in the last minutes, in all processes.",
             (422,), ("minutes",)),
    ApiRoute("GET", "/v1/flows/{flow}/declaration", "declaration", "Its declaration in YAML, without secrets."),
    ApiRoute("GET", "/v1/flows/{flow}/waiting", "waiting", "Events that wait in its channels.", (409, 422),
             ("channel", "limit")),
    ApiRoute("GET", "/v1/flows/{flow}/tap", "tap", "Samples of passing events, as server-sent events.",
             (422, 429), ("rate", "channel")),
    ApiRoute("GET", "/v1/dead_letters", "dead_letters", "Open dead letters of a flow or a topic.",
             (404, 422, 503), ("flow", "topic", "limit", "contains")),
    ApiRoute("POST", "/v1/dead_letters/replay", "replay", "Send dead letters to their origin again.",
             (404, 503), (), ReplayBody),
    ApiRoute("GET", "/metrics", "metrics", "For Prometheus."),
    ApiRoute("GET", "/openapi.json", "openapi", "This document."),
)  # fmt: skip

_TEXTS: Final = {
    200: "success", 201: "deployed", 400: "the body can't be read", 404: "not found",
    409: "not possible now: it exists, or has ended", 415: "wrong content type", 422: "invalid body",
    429: "too many taps", 503: "not all flows run, or the tidelog server does not reply",
}  # fmt: skip


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    bodies = {each.body for each in ROUTES if each.body is not None}
    paths: dict[str, dict[str, Any]] = {}
    for each in ROUTES:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tidelog flows", "version": tidelog.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas([*bodies, ErrorBody]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]
    made: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(code): _answer(code) for code in route.codes},
    }
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": _content(route.body)}
    return made


def _answer(code: int) -> dict[str, Any]:
    described = {"description": _TEXTS[code]}
    return described if code < 400 else {**described, "content": _content(ErrorBody)}


def _content(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(name=kind.__name__)}}}
