"""The OpenAPI document, which is derived from the table of routes."""

from __future__ import annotations

import re
from typing import Any, Final

import tidelog
from tidelog.gateway.errors import PROBLEM
from tidelog.gateway.media import JSON
from tidelog.gateway.parameters import Parameter
from tidelog.gateway.routes import ROUTES
from tidelog.gateway.schemas import COMPONENTS, ref
from tidelog.gateway.site import Answer, GatewayRoute

PATHS: Final = {
    "key": "The key of a stream, percent-encoded.", "group": "The name of a group, percent-encoded.",
    "token": "The token of a delayed entry, percent-encoded.",
}  # fmt: skip
TOKEN: Final[dict[str, Any]] = {
    "name": "token", "in": "query", "schema": {"type": "string"}, "description": "A token of `POST /v1/tokens`.",
}  # fmt: skip


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tidelog gateway", "version": tidelog.__version__, "description": "Streams of tidelog over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "responses": {
                "Problem": {"description": "An error (RFC 9457).", "content": _content(ref("Problem"), (PROBLEM,))}
            },
            "securitySchemes": {
                "user": {"type": "http", "scheme": "basic", "description": "An ACL user of the server."},
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `POST /v1/tokens`."},
            },
        },
        "security": [{"user": []}, {}],
    }


def _operation(route: GatewayRoute) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": PATHS[name]}
        for name in names
    ] + [_parameter(each) for each in route.parameters]
    parameters += [
        {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
        for name, description in route.headers.items()
    ]
    made: dict[str, Any] = {
        "operationId": route.handle.__module__.rpartition(".")[2] + "_" + route.handle.__name__,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(status): _answer(answer) for status, answer in route.answers.items()},
    }
    made["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": _content(route.body, route.body_media)}
    if route.by_token:
        parameters.append(TOKEN)
        made["security"] = [{"user": []}, {"token": []}, {}]
    return made


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name, "in": "query", "schema": dict(parameter.schema), "description": parameter.description,
    }  # fmt: skip


def _answer(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.description}
    if answer.schema is not None:
        found["content"] = _content(answer.schema, answer.media)
    return found


def _content(schema: Any, media: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a body. Lines and events are described as text."""
    structured = {kind: {"schema": dict(schema)} for kind in media if kind in (JSON, PROBLEM)}
    return structured | {kind: {"schema": {"type": "string"}} for kind in media if kind not in (JSON, PROBLEM)}

