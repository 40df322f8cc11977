"""Clients that are slow, huge or malformed, and servers that die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.tidelog.gateway.gatewaykit import Caller, visit
from tests.waiting import until
from tidelog.gateway import application, site, users
from tidelog.gateway.application import GatewayServer
from tidelog.gateway.limits import BODY, UseLimit
from tidelog.operating import httpaddress
from tidelog.testing import Server

S = "/v1/streams/orders"
FIELD = {"fields": {"a": "b"}}


async def exchange(url: str, *parts: bytes) -> bytes:
    """Send bytes on a new connection, and return what arrives until the gateway closes it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
    except ConnectionError:  # the response may still be readable
        pass
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_a_body_of_a_gigabyte(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpaddress, "LINGER", 0.2)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        post = f"POST {S} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        answer = await exchange(caller.url, post + b"Content-Length: 1073741824\r\n\r\n", b"x" * 100_000)
        assert answer.startswith(b"HTTP/1.1 413 ")
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        chunks = [chunk] * (BODY // 65536 + 2)
        answer = await exchange(caller.url, post + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"The body is too large" in answer
        assert (await caller.post(S, FIELD))[0] == 201

    visit(tidelog_server, test)


def test_garbage(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        get = f"GET {S} HTTP/1.1\r\nHost: localhost\r\n".encode()
        assert (await exchange(caller.url, os.urandom(10_000)))[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b"")
        many = get + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)) + b"\r\n"
        for sent in (many, get + b"X: " + b"y" * 100_000 + b"\r\n\r\n", b"*1\r\n$4\r\nPING\r\n"):
            assert (await exchange(caller.url, sent))[9:12] == b"400"
        assert (await caller.get(S, Authorization="Basic " + "A" * 4000))[0] == 401
        assert (await caller.get(S))[0] == 200

    visit(tidelog_server, test)


def test_slow_requests(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HEADERS_WITHIN", 0.2)
    monkeypatch.setattr(site, "BODY_WITHIN", 0.2)
    monkeypatch.setattr(httpaddress, "LINGER", 0.2)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert await exchange(caller.url, b"GET / HTTP/1.1\r\nHost: localhost\r\n") == b""
        post = f"POST {S} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
        answer = await exchange(caller.url, post.encode())
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too-slow"

    visit(tidelog_server, test)


def test_memory_of_bodies_is_limited(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        gateway.site.memory = UseLimit("bytes", 10 * BODY, 4 * BODY)
        first = asyncio.create_task(waiting_body(caller.url))
        await until(lambda: gateway.site.memory.used)
        status, found, headers = await caller.post(S, FIELD)
        assert (status, found["code"], headers["Retry-After"]) == (429, "too-many", "10")
        first.cancel()
        await asyncio.wait([first])
        await until(lambda: not gateway.site.memory.used)
        assert (await caller.post(S, FIELD))[0] == 201

    async def waiting_body(url: str) -> None:
        await exchange(
            url, f"POST {S} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {BODY}\r\n\r\n{{".encode(),
        )  # fmt: skip

    visit(tidelog_server, test)


def test_a_server_that_is_killed(tidelog_server: Server) -> None:
    """Requests that can be repeated wait until it is back."""

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ids = await caller.append("orders", {"a": "b"}, Idempotency_Key="k")
        tidelog_server.kill()
        requests = [
            asyncio.create_task(each)
            for each in (
                caller.get(S), caller.post(S, [FIELD], Idempotency_Key="k"),
                caller.post(S, [FIELD] * 2, Idempotency_Key="n"),
            )
        ]  # fmt: skip
        status, found, headers = await caller.post(S, FIELD)
        assert (status, found["code"], headers["Retry-After"]) == (503, "unavailable", "1")
        await asyncio.to_thread(tidelog_server.start)
        read, repeated, new = await asyncio.gather(*requests)
        assert (read[0], repeated[1]["ids"], new[0]) == (200, ids, 201)

    visit(tidelog_server, test)


def test_a_server_that_is_stopped(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "ANSWER_MS", 300)
    monkeypatch.setattr(users, "PATIENCE", 0.1)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert (await caller.post(S, FIELD))[0] == 201
        os.kill(tidelog_server.pid, signal.SIGSTOP)
        try:
            status, found, _ = await caller.post(S, FIELD)
            assert (status, "may have been executed" in found["detail"]) == (503, True)
            assert (await caller.get(S))[0] == 503
        finally:
            os.kill(tidelog_server.pid, signal.SIGCONT)

        async def served() -> Any:
            return (await caller.get(S))[0] == 200

        await until(served)

    visit(tidelog_server, test)
