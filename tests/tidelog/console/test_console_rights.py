"""Pages with exactly the rights that docs/console.md names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.tidelog.console.consolekit import Visitor, add_user, visit
from tidelog.console.application import ConsoleServer
from tidelog.testing import Server, running_server
from tidelog.topics import Topic

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


def rows() -> dict[str, list[str]]:
    """The rules of the table, by the first column."""
    found = re.findall(r"^  \| ([a-z, ]+) \| (`[^|]*(?:\\\|[^|]*)*) \| ([^|]*) \|$", GUIDE, re.MULTILINE)
    code = re.compile(r"`([^`]+)`")
    return {
        name: " ".join(code.findall(commands) + code.findall(keys)).replace("\\|", "|").split()
        for name, commands, keys in found
    }


def test_the_rules_of_the_guide_permit_the_pages(tidelog_server: Server) -> None:
    """Each page, and each change, with the rules of its row and those of the pages that it belongs to."""
    topic: Topic[Any] = Topic("T", dict, partitions=2, url=tidelog_server.url)
    topic.sync.send({"n": "1"}, delay=3600)
    topic.sync.send_many([{"n": "1"}] * 4)
    with tidelog_server.client() as client:
        at = client.tappend("S", {"n": 1})
        client.tread("S", "0", 1, group="g", retry=60_000)
        client.tread("T:0", "0", 1, group="g", retry=60_000)
        token = client.tdelay("S", {"n": 1}, ms=10**7)
    streams, topics = "streams, entries, search, groups", "topics, records"
    pages: dict[str, list[str | tuple[str, dict[str, str]]]] = {
        streams: [
            "/streams", "/streams/stream?key=S", f"/streams/entry?key=S&id={at}",
            "/streams/search/events?key=S&words=n", "/streams/density?key=S", "/streams/groups?key=S",
            "/streams/group?key=S&group=g", "/groups?streams=S", "/groups/group?streams=S&group=g",
            "/streams/retention?key=S",
        ],
        topics: [
            "/topics?pattern=T", "/topics/topic?name=T", "/topics/records?name=T", "/groups?topic=T",
            "/topics/retention?name=T",
        ],
        "delayed entries and records": [
            "/streams/delayed?key=S", ("/streams/delayed/cancel?key=S", {"token": token.encode().hex()})
        ],
        "append": [("/streams/append?key=S", {"field": "a", "value": "b"})],
        "reset a group, change pending messages": [
            ("/groups/preview?group=g", {"stream": b"S".hex(), "to": "earliest"}),
            ("/groups/reset?group=g", {"move": f"{b'S'.hex()} {at} 0.0"}),
            ("/streams/group/settle?key=S&group=g", {"action": "nack", "id": str(at)}),
            ("/streams/group/settle?key=S&group=g", {"action": "ack", "id": str(at)}),
        ],
        "retention of a stream": [
            ("/streams/retention/preview?key=S", {"count": "5"}), ("/streams/retention/set?key=S", {"count": "5"}),
            ("/streams/retention/local?key=S", {"local": "7d"}),
        ],
        "programs": ["/programs"],
        "retention of a topic": [
            ("/topics/retention/preview?name=T", {"count": "5"}), ("/topics/retention/set?name=T", {"count": "5"})
        ],
    }  # fmt: skip
    table = rows()
    assert pages.keys() == table.keys()

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        for name, requests in pages.items():
            below = topics if "topic" in name else streams
            add_user(tidelog_server, "ann", "+@connection", *table[below], *table[name])
            await visitor.log_in()
            csrf = await visitor.csrf()
            for each in requests:
                path, form = each if isinstance(each, tuple) else (each, None)
                if form is None:
                    status, text, _ = await visitor.get(path)
                else:
                    status, text, _ = await visitor.post(path, {"csrf": csrf} | form)
                assert status == 200, (path, text)
                if path != "/streams":  # it lists streams that the user may not read
                    assert "NOPERM" not in text, (path, text)
                assert 'class="problem"' not in text, (path, text)
            await visitor.post("/logout", {"csrf": csrf})

    visit(tidelog_server, test, history=False)


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
