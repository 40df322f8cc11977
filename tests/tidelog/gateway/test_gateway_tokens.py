"""Tokens of pages, the OpenAPI document, and health."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.tidelog.gateway.gatewaykit import PASSWORD, Caller, Events, add_user, visit
from tidelog.gateway import users
from tidelog.gateway.application import GatewayServer
from tidelog.gateway.openapi import document
from tidelog.gateway.routes import ROUTES
from tidelog.gateway.tokens import AccessTokens
from tidelog.gateway.users import GatewayUser
from tidelog.operating.loginfailures import FAILURES
from tidelog.testing import Server
from tidelog.transport.access import Access

S = "/v1/streams/chat"


def test_a_token_permits_reading_one_stream(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        with tidelog_server.client() as client:
            client.redis.config_set("requirepass", PASSWORD)
            try:
                ann = caller.as_user("ann")
                ids = await ann.append("chat", {"n": 1})
                status, issued, _ = await ann.post("/v1/tokens", {"key": "chat", "ttl": "15m"})
                token = issued["token"]
                assert (status, token[:4]) == (201, "tgw_")
                assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", issued["expires"])
                assert (await caller.get(f"{S}?token={token}"))[1]["entries"][0]["id"] == ids[0]
                assert (await caller.get(S, Authorization=f"Bearer {token}"))[0] == 200
                assert (await caller.call("HEAD", f"{S}?token={token}"))[0] == 200
                async with Events(caller, f"{S}?after=0.0&token={token}").open() as reader:
                    assert (await reader.take(1))[0].id == ids[0]
                for method, path in (
                    ("GET", "/v1/streams/other"), ("POST", S), ("GET", f"{S}/retention"), ("POST", "/v1/tokens"),
                    ("DELETE", f"{S}/delayed/x"), ("POST", f"{S}/groups/g/ack"),
                ):  # fmt: skip
                    body = {"fields": {"a": "b"}} if method == "POST" else None
                    status, found, _ = await caller.call(method, f"{path}?token={token}", body)
                    assert (status, found["code"]) == (403, "token-scope"), path
                assert (await caller.get(f"{S}?group=g&token={token}"))[1]["code"] == "token-scope"
                for wrong in (token + "x", "x", "", "%FF"):
                    assert (await caller.get(f"{S}?token={wrong}"))[1]["code"] == "token-expired"
                _, issued, _ = await ann.post("/v1/tokens", {"key": {"base64": "/w=="}})
                assert (await caller.get(f"/v1/streams/%FF?token={issued['token']}"))[0] == 200
                client.redis.execute_command("ACL", "SETUSER", "ann", "-tread")
                assert (await caller.get(f"{S}?token={token}"))[1]["code"] == "NOPERM"
            finally:
                client.redis.config_set("requirepass", "")

    visit(tidelog_server, test)


def test_tokens_that_are_refused(gateway: Any) -> None:
    for body in ({}, {"key": ""}, {"key": "a", "ttl": "2d"}, {"key": "a", "ttl": 0}, {"key": "a", "more": 1},
                 {"key": {"base64": "!"}}, {"key": "a", "ttl": "x"}, {"key": "x" * 5000}):  # fmt: skip
        assert gateway("POST", "/v1/tokens", body)[0] == 422, body


def test_a_changed_password_ends_tokens(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    monkeypatch.setattr(users, "VERIFIED", 0.0)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        _, issued, _ = await caller.as_user("ann").post("/v1/tokens", {"key": "chat"})
        with tidelog_server.client() as client:
            client.redis.execute_command("ACL", "SETUSER", "ann", "resetpass", ">another")
        for _ in range(2 * FAILURES):
            assert (await caller.get(f"{S}?token={issued['token']}"))[0] == 401
        assert (await caller.as_user("ann", "another").get(S))[0] == 200

    visit(tidelog_server, test)


def test_an_event_stream_ends_with_its_token(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        _, issued, _ = await caller.post("/v1/tokens", {"key": "chat", "ttl": "300ms"})
        async with Events(caller, f"{S}?token={issued['token']}").open() as reader:
            (problem,) = await reader.take(2)
            assert (problem.name, problem.data["code"]) == ("problem", "token-expired")
        assert (await caller.get(f"{S}?token={issued['token']}"))[0] == 401

    visit(tidelog_server, test)


def test_tokens_expire_and_are_limited() -> None:
    now = 0.0
    tokens = AccessTokens(lambda: now)
    user = GatewayUser(Access.of("redis://localhost"), "ann", "x")
    token, _ = tokens.issue(user, b"k", 10.0)
    other, _ = tokens.issue(user, b"k", 20.0)
    assert (user.in_use, token != other) == (2, True)
    now = 10.0
    assert (tokens.find(token), tokens.find(other) is not None) == (None, True)
    tokens.sweep()
    assert user.in_use == 1
    user.close()
    assert tokens.find(other) is None
    tokens.sweep()
    assert user.in_use == 0


def test_a_forwarded_request_needs_credentials(gateway: Any) -> None:
    assert gateway("GET", S)[0] == 200
    for name in ("X_Forwarded_For", "Forwarded", "Via", "X_Real_IP"):
        assert gateway("GET", S, **{name: "x"})[1]["code"] == "no-credentials"
        for credentials in (b"default:", b":", b"default:any"):
            basic = "Basic " + base64.b64encode(credentials).decode()
            assert gateway("GET", S, Authorization=basic)[0] == 200
            assert gateway("GET", S, Authorization=basic, **{name: "x"})[1]["code"] == "no-password"


def test_the_openapi_document(gateway: Any) -> None:
    status, found, _ = gateway("GET", "/v1/openapi.json")
    assert (status, found) == (200, document())
    OpenAPIV31SpecValidator(found).validate()
    assert {(path, method.upper()) for path, item in found["paths"].items() for method in item} == {
        (route.path, route.method) for route in ROUTES
    }
    operations = [each["operationId"] for item in found["paths"].values() for each in item.values()]
    assert len(set(operations)) == len(operations)


def test_the_table_of_routes_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/gateway.md").read_text()
    for route in ROUTES:
        for parameter in route.parameters:
            assert f"`{parameter.name}`" in text or f"`{parameter.name}=" in text, parameter.name


def test_health(gateway: Any) -> None:
    assert gateway("GET", "/v1/health")[:2] == (200, {"status": "ok"})
