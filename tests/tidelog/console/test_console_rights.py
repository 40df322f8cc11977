"""The overview with exactly the rights that docs/console.md names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.tidelog.console.consolekit import Visitor, add_user, visit
from tidelog.console.application import ConsoleServer
from tidelog.testing import Server, running_server

GUIDE = (Path(__file__).parents[3] / "docs/console.md").read_text()


def rules() -> list[str]:
    found = re.search(r"ACL SETUSER ann on >secret(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1].split()


def denied(server: Server) -> int:
    with server.client() as client:
        return len(client.redis.execute_command("ACL", "LOG"))


def test_the_rules_of_the_guide_permit_the_overview(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann", *rules())
    before = denied(tidelog_server)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        for path in ("/", "/overview/clients"):
            status, text, _ = await visitor.get(path)
            assert status == 200
            assert "NOPERM" not in text
        found = json.loads((await visitor.get("/overview/history?span=1h"))[1])
        assert (found["problem"], found["notice"]) == ("", "")
        assert len(found["columns"]["memory"]) >= 1

    visit(tidelog_server, test)
    assert denied(tidelog_server) == before


def test_a_member_of_a_server_group_shows_the_group(tmp_path: Path) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        status, text, _ = await visitor.log_in()
        assert status == 303, text
        while "leading" not in (text := (await visitor.get("/"))[1]):  # each request takes some milliseconds
            assert "Replication" in text or "Group" in text
        for expected in ('Group <span class="mono">tide</span>', '<th scope="row">one</th>', "<td>leading</td>"):
            assert expected in text
        assert "NOPERM" not in text

    coordinator = f"file://{tmp_path}/tide"
    with running_server(group="tide", group_member="one", coordinator=coordinator, min_in_sync=1) as server:
        add_user(server, "ann", *rules())
        visit(server, test)


def test_without_the_history(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        found = json.loads((await visitor.get("/overview/history"))[1])
        assert found["notice"] == "The console was started with --no-history."
        with tidelog_server.client() as client:
            assert client.redis.dbsize() == 0

    visit(tidelog_server, test, history=False)
