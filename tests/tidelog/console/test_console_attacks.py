"""Attempts to evade the audit log or the limits of the console, and to make it fail for other users."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from yarl import URL

from tests.tidelog.console.consolekit import PASSWORD, Visitor, add_user, audited, visit
from tests.waiting import until
from tidelog.client import Client
from tidelog.console import application, history, security
from tidelog.console.application import ConsoleServer
from tidelog.console.connection import NAME
from tidelog.console.sessions import ConsoleSessions
from tidelog.operating.loginfailures import FAILURES
from tidelog.testing import Server
from tidelog.transport.access import Access

APPEND = "/streams/append?key=s"
FORM = {"field": "f", "value": "v"}


def waiting(client: Client) -> list[str]:
    """IDs of the connections of the console whose command waits."""
    found = client.redis.client_list()
    return [each["id"] for each in found if each["name"] == NAME and "b" in each["flags"]]


def actions(path: Path) -> list[str]:
    return [line["action"] for line in audited(path)]


def test_a_change_is_audited_if_the_browser_goes_away(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = await visitor.csrf()
        with tidelog_server.client() as client:
            client.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            url = urlsplit(console.url)
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            cookies = visitor.session.cookie_jar.filter_cookies(URL(console.url)).output(header="Cookie:", attrs=[])
            writer.write(
                f"POST {APPEND} HTTP/1.1\r\nHost: {url.netloc}\r\n{cookies}\r\nX-CSRF-Token: {token}\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 15\r\n\r\nfield=f&value=v".encode()
            )
            await until(lambda: waiting(client), "the change waits")
            reset = struct.pack("ii", 1, 0)  # close() sends RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.transport.abort()
            runner: Any = console._runner
            await until(lambda: len(runner.server.connections) == 1, "the console knows that it has gone")
            client.redis.execute_command("CLIENT", "UNPAUSE")
            await until(lambda: client.redis.xlen("s"), "the server executes it")
        await until(lambda: "append" in actions(path), "the line of the change")

    visit(tidelog_server, test, audit_file=str(path), history=False)
    assert audited(path)[-1]["result"] == "done"


@pytest.mark.parametrize(
    ("address", "form", "action"),
    [
        (APPEND, FORM, "append"),
        ("/streams/group/settle?key=s&group=g", {"id": "1.1", "action": "ack"}, "ack"),
    ],
)
def test_a_change_without_a_reply_is_audited(
    tidelog_server: Server, tmp_path: Path, address: str, form: dict[str, str], action: str
) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = await visitor.csrf()
        with tidelog_server.client() as client:
            client.redis.execute_command("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            client.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            request = asyncio.create_task(visitor.post(address, form, X_CSRF_Token=token))

            for each in await until(lambda: waiting(client), "the change waits"):
                client.redis.client_kill_filter(_id=each)
            status, text, _ = await request
            client.redis.execute_command("CLIENT", "UNPAUSE")
        assert (status, "may have been executed" in text) == (503, True)

    visit(tidelog_server, test, audit_file=str(path), history=False)
    last = audited(path)[-1]
    assert (last["action"], "may have been executed" in last["result"]) == (action, True)


def test_junk_in_the_history_does_not_prevent_logins(tidelog_server: Server) -> None:
    """Each user who may append to the stream could lock out all others."""
    add_user(tidelog_server, "ann")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        with tidelog_server.client() as client:
            client.redis.xadd(history.KEY, {"run": b"\xff", "commands": "x", "memory": "9" * 5000, "clients": 3})
        assert (await visitor.log_in())[0] == 303
        status, text, _ = await visitor.get("/overview/history")
        assert (status, '"problem": ""' in text, '"clients"' in text) == (200, True, True)

    visit(tidelog_server, test)


def test_failed_logins_are_limited_if_they_are_simultaneous(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def main() -> None:
        sessions = ConsoleSessions(Access.of(tidelog_server.url))
        attempts = (sessions.log_in("ann", "wrong", "10.0.0.1") for _ in range(5 * FAILURES))
        found: list[Any] = await asyncio.gather(*attempts, return_exceptions=True)
        count = Counter("WRONGPASS" in str(each) for each in found)
        assert count == {True: FAILURES, False: 4 * FAILURES}
        # Simultaneous logins with the right password are not failures.
        for _ in range(3):
            attempts = (sessions.log_in("ann", PASSWORD, "10.0.0.2") for _ in range(FAILURES))
            assert {each.user for each in await asyncio.gather(*attempts)} == {"ann"}
        sessions.end_all()

    asyncio.run(main())


def test_long_names_do_not_fill_the_disk(tidelog_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        status, text, _ = await visitor.log_in("\x00" * 300_000)
        assert status == 400
        assert len(text) < 10_000

    visit(tidelog_server, test, audit_file=str(path))
    assert path.stat().st_size < 5000


def test_numbers_that_python_does_not_read(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    digits = "9" * 5000

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        with tidelog_server.client() as client:
            client.redis.xadd("s", {"f": "v"})
        for path, status in (
            (f"/streams/stream?key=s&at=%23{digits}", 200), (f"/streams/density?key=s&span={digits}", 400),
            (f"/streams/rows?cursor=0&examined={digits}", 200),
        ):  # fmt: skip
            assert (await visitor.get(path))[0] == status

    visit(tidelog_server, test, history=False)


# -- slow peers, and many of them ----------------------------------------------------------------------------
def visit_address(
    server: Server, test: Callable[[Visitor, str, int], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def main(visitor: Visitor, console: ConsoleServer) -> None:
        place = urlsplit(console.url)
        assert place.hostname is not None
        assert place.port is not None
        await test(visitor, place.hostname, place.port)

    visit(server, main, history=False, **options)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What is answered until the connection is closed."""
    async with asyncio.timeout(30):
        return await reader.read()


def test_peers_that_do_not_complete_a_request(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HEADERS_WITHIN", 0.2)
    monkeypatch.setattr(security, "BODY_WITHIN", 0.2)
    form = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    form += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nuser=ann"

    async def test(visitor: Visitor, host: str, port: int) -> None:
        for begun, expected in (
            (b"", b""), (b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-A: ", b""), (form, b"HTTP/1.1 408 "),
        ):  # fmt: skip
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(begun)
            assert (await until_closed(reader)).startswith(expected)
            writer.close()
        assert (await visitor.get("/login"))[0] == 200

    visit_address(tidelog_server, test)


def test_connections_are_limited(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "CONNECTIONS", 3)

    async def test(visitor: Visitor, host: str, port: int) -> None:
        held = [await asyncio.open_connection(host, port) for _ in range(3)]
        reader, writer = await asyncio.open_connection(host, port)
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 503 ")
        for _, each in (*held, (reader, writer)):
            each.close()

        async def answered() -> bool:
            return (await visitor.get("/login"))[0] == 200

        await until(answered)

    visit_address(tidelog_server, test)


def test_connections_count_before_the_handshake(
    tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "CONNECTIONS", 1)
    path = tmp_path / "console.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)

    async def test(visitor: Visitor, host: str, port: int) -> None:
        _, silent = await asyncio.open_connection(host, port)
        reader, writer = await asyncio.open_connection(host, port)
        assert await until_closed(reader) == b""
        for each in (silent, writer):
            each.close()

    visit_address(tidelog_server, test, cert_file=str(path))


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/x-www-form-urlencoded", b"user=\xff", 400),
        ("application/x-www-form-urlencoded; charset=none", b"user=ann", 400),
        ("multipart/form-data", b"junk", 415),
        ("multipart/form-data; boundary=x", b"--x\r\njunk\r\n\r\n--x--", 415),
    ],
)
def test_bodies_that_cannot_be_read(tidelog_server: Server, kind: str, body: bytes, status: int) -> None:
    async def test(visitor: Visitor, host: str, port: int) -> None:
        headers = {"Content-Type": kind}
        async with visitor.session.post(f"{visitor.url}/login", data=body, headers=headers) as answer:
            assert answer.status == status

    visit_address(tidelog_server, test)
