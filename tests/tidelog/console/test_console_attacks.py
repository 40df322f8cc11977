"""Attempts to evade the audit log or the limits of the console, and to make it fail for other users."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.console.consolekit import PASSWORD, Visitor, add_user, audited, visit
from tests.waiting import until
from tidelog.console import history
from tidelog.console.application import ConsoleServer
from tidelog.console.connection import NAME
from tidelog.console.sessions import FAILURES, ConsoleSessions
from tidelog.testing import Server
from tidelog.transport.access import Access

APPEND = "/streams/append?key=s"
FORM = {"field": "f", "value": "v"}


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
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await visitor.post(APPEND, FORM, X_CSRF_Token=token)
            runner: Any = console._runner
            await until(lambda: not runner.server.connections, "the console knows that it has gone")
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

            def paused() -> list[str]:
                """IDs of the connection of the console whose command waits."""
                found = client.redis.client_list()
                return [each["id"] for each in found if each["name"] == NAME and "b" in each["flags"]]

            for each in await until(paused, "the change waits"):
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
