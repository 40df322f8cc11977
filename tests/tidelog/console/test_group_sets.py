"""Many groups of a stream, and groups of the same name on several streams."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import RedisServer
from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tidelog.client import Client
from tidelog.console import groups, groupsets
from tidelog.console.application import ConsoleServer
from tidelog.testing import Server
from tidelog.topics import Topic

LINK = re.compile(r'<th scope="row" class="mono name"><a href="[^"]*">([^<]*)</a>')


def plain(text: str) -> str:
    """The text of HTML, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def following(text: str) -> str:
    found = re.search(r'rel="next" href="([^"]+)"', text)
    return html.unescape(found[1]) if found else ""


def write(client: Client, count: int = 3) -> list[list[Any]]:
    """Streams part:0 ... with 10 entries, and the group ``g`` at the fourth; entries of each stream."""
    for at in range(count):
        client.tmappend(f"part:{at}", ["n"], [(f"<b>{n}</b>",) for n in range(10)])
        client.tread(f"part:{at}", "0", 4, group="g", retry=60_000)
    return [client.trange(f"part:{at}") for at in range(count)]


def test_thousands_of_groups_are_paged(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page interprets the rows of its own groups only, and sorts them outside of the event loop."""
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(10)])
        first = client.trange("s", count=1)[0].id
        pipeline = client.redis.pipeline(transaction=False)
        for number in range(3000):
            pipeline.xgroup_create("s", f"group-{number:05}", "0")
        pipeline.execute()
        client.redis.xgroup_setid("s", "group-00000", f"{first.ms}-{first.seq}")
        client.redis.xgroup_setid("s", "group-02777", "$")
        client.redis.xreadgroup("group-01555", "c", {"s": ">"}, count=2)

    interpreted: list[int] = []
    threads: list[object] = []
    group_of, to_thread = groups.group_of, asyncio.to_thread

    def counted(row: Any) -> groups.GroupSummary:
        interpreted.append(1)
        return group_of(row)

    monkeypatch.setattr(groups, "group_of", counted)

    async def threaded(work: Any, *args: Any) -> Any:
        threads.append(work)
        return await to_thread(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", threaded)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        seen: list[str] = []
        path = "/streams/groups?key=s"
        for _ in range(3):
            interpreted.clear()
            _, text, _ = await visitor.get(path)
            seen += LINK.findall(text)
            path = following(text)
            assert len(interpreted) == groups.LISTED
        assert seen == [f"group-{number:05}" for number in range(300)]
        assert threads == [groups.selected] * 3
        assert "201 to 300 of 3,000" in plain(text)
        assert LINK.findall((await visitor.get("/streams/groups?key=s&start=99999999"))[1])[-1] == "group-02999"
        _, text, _ = await visitor.get("/streams/groups?key=s&filter=777&order=name")
        assert LINK.findall(text)[:2] == ["group-00777", "group-01777"]
        assert "of 3 matching" in plain(text)
        _, text, _ = await visitor.get("/streams/groups?key=s&order=position")
        assert LINK.findall(text)[0] == "group-00001"
        assert LINK.findall((await visitor.get("/streams/groups?key=s&order=position&start=2900"))[1])[-3:] == [
            "group-00000", "group-01555", "group-02777",
        ]  # fmt: skip
        assert LINK.findall((await visitor.get("/streams/groups?key=s&order=pending"))[1])[0] == "group-01555"
        assert (await visitor.get("/streams/groups?key=s&order=x"))[0] == 400
        assert (await visitor.get("/streams/group?key=s&group=group-02999"))[0] == 200
        _, text, _ = await visitor.get("/groups?streams=s&filter=777")
        assert LINK.findall(text)[:2] == ["group-00777", "group-01777"]

    visit(tidelog_server, test)


def test_a_group_with_the_name_of_a_field(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        client.tappend("s", {"n": 1})
        for name in ("pending", "last-delivered-id", "<i>"):
            client.redis.xgroup_create("s", name, "0")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        for path in ("/streams/groups?key=s&order=position", "/groups?order=pending"):
            assert LINK.findall((await visitor.get(path))[1]) == ["&lt;i&gt;", "last-delivered-id", "pending"]

    visit(tidelog_server, test)


def test_groups_of_several_streams(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "bob", "+@all", "~part:0")
    with tidelog_server.client() as client:
        write(client)
        client.redis.xgroup_create("part:1", "other", "$")
        client.tappend("far", {"n": 1})
        client.redis.xgroup_create("far", "g", "0")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/groups")
        assert LINK.findall(text) == ["g", "other"]
        assert re.search(r" g 4 19 [\d.]+ m?s 12 [^ ]+ m?s ago", plain(text)), plain(text)
        _, text, _ = await visitor.get("/groups?streams=part")
        assert re.search(r" g 3 18 ", plain(text))
        assert re.search(r" other 1 0 ", plain(text))
        _, text, _ = await visitor.get("/groups/group?streams=part&group=g")
        assert LINK.findall(text) == ["part:0", "part:1", "part:2"]
        assert re.search(r"part:1 6 [\d.]+ m?s 4 [^ ]+ m?s ago 1 \u2013 0 ", plain(text)), plain(text)
        assert (await visitor.get("/groups/group?streams=part&group=none"))[0] == 404
        assert (await visitor.get("/groups/group?group=g"))[0] == 400
        monkeypatch.setattr(groupsets, "GROUPS", 1)
        _, text, _ = await visitor.get("/groups?streams=part")
        assert "The groups of 2 streams were not read" in plain(text)
        monkeypatch.undo()
        await visitor.post("/logout", {"csrf": await visitor.csrf()})
        await visitor.log_in("bob")
        _, text, _ = await visitor.get("/groups?streams=part")
        assert re.search(r" g 1 6 ", plain(text))
        assert "NOPERM" in text

    visit(tidelog_server, test, history=False)


def test_the_groups_of_a_topic(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    topic: Topic[Any] = Topic("orders", dict, partitions=3, url=tidelog_server.url)
    topic.sync.send({"n": "1"})  # two partitions do not exist yet
    with tidelog_server.client() as client:
        client.tread("orders:0", "0", 4, group="g")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/groups?topic=orders")
        assert LINK.findall(text) == ["g"]
        _, text, _ = await visitor.get("/groups/group?topic=orders&group=g")
        assert "of 3 partitions" in text
        assert (await visitor.get("/groups?topic=none"))[0] == 404

    visit(tidelog_server, test)


def test_a_reset_of_all_streams_has_a_preview(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        entries = write(client)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            token = await visitor.csrf()
            _, page, _ = await visitor.get("/groups/group?streams=part&group=g")
            streams = re.findall(r'name="stream" value="([^"]+)"', page)
            assert [bytes.fromhex(each) for each in streams] == [b"part:0", b"part:1", b"part:2"]

            async def post(what: str, **form: Any) -> tuple[int, str, Any]:
                return await visitor.post(f"/groups/{what}?group=g", {"csrf": token} | form)

            _, text, _ = await post("preview", stream=streams, to="earliest")
            assert "On 3 streams: 12 entries will be read again." in plain(text)
            assert plain(text).count("n <b>0</b>") == 3
            assert "18 entries will be skipped" in plain((await post("preview", stream=streams, to="latest"))[1])
            _, text, _ = await post("preview", stream=streams[:2], to=str(entries[0][1].id))
            assert "On 2 streams:" in plain(text)
            moves = re.findall(r'name="move" value="([^"]+)"', text)
            assert moves[0] == f"{streams[0]} {entries[0][3].id} {entries[0][1].id}"
            for what, form in (
                ("preview", {"stream": [], "to": "earliest"}), ("preview", {"stream": streams, "to": "never"}),
                ("preview", {"stream": ["xx"], "to": "earliest"}), ("reset", {}), ("reset", {"move": ["1 2"]}),
                ("reset", {"move": ["x y z"]}),
            ):  # fmt: skip
                assert (await post(what, **form))[0] == 400, form
            assert (await post("preview", stream=[b"none".hex()], to="earliest"))[0] == 404

            client.tread("part:1", "0", 1, group="g")  # the group reads on
            status, text, _ = await post("reset", move=moves)
            assert (status, "has changed on part:1" in text) == (409, True)
            assert client.tgroup_list("part:0")[0].offset == entries[0][3].id
            _, text, _ = await post("reset", move=moves, moving="yes")
            assert "reset on 2 of 2 streams" in plain(text)

        visit(tidelog_server, test, audit_file=str(path))
        assert client.tread("part:0", "0", 1, group="g").entries[0].id == entries[0][2].id
    lines = [line for line in audited(path) if line["action"] == "reset"]
    assert [line["target"] for line in lines] == ["part:0 g", "part:1 g"]
    assert lines[0]["detail"] == {"before": str(entries[0][3].id), "after": str(entries[0][1].id)}
    assert {line["result"] for line in lines} == {"done"}


def test_a_refused_reset_names_the_streams(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann", "+@all", "~part:0", "%R~part:1")
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        entries = write(client, 2)
        moves = [f"{f'part:{at}'.encode().hex()} {entries[at][3].id} 0.0" for at in range(2)]

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            form: Any = {"csrf": await visitor.csrf(), "move": moves}
            _, text, _ = await visitor.post("/groups/reset?group=g", form)
            assert "part:1: NOPERM" in plain(text)
            assert "reset on 1 of 2 streams" in plain(text)

        visit(tidelog_server, test, audit_file=str(path))
        assert [str(client.tgroup_list(f"part:{at}")[0].offset) for at in range(2)] == ["0.0", str(entries[1][3].id)]
    done, refused = [line["result"] for line in audited(path) if line["action"] == "reset"]
    assert (done, refused[:6]) == ("done", "NOPERM")


def test_a_redis_server(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for key in ("part:0", "part:1"):
            for n in range(6):
                client.xadd(key, {"n": n})
            client.xgroup_create(key, "g", "0")
            client.xreadgroup("g", "c1", {key: ">"}, count=4)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in("default", "")
            _, text, _ = await visitor.get("/groups")
            assert re.search(r" g 2 4 [\d.]+ m?s 8 ", plain(text))
            _, text, _ = await visitor.get("/groups/group?streams=&group=g")
            form: Any = {"csrf": await visitor.csrf(), "to": "earliest"}
            form["stream"] = re.findall(r'name="stream" value="([^"]+)"', text)
            _, text, _ = await visitor.post("/groups/preview?group=g", form)
            assert "8 entries will be read again" in plain(text)
            form["move"] = re.findall(r'name="move" value="([^"]+)"', text)
            assert "reset on 2 of 2" in plain((await visitor.post("/groups/reset?group=g", form))[1])

        visit(f"redis://127.0.0.1:{redis_server.port}", test)
        assert client.xinfo_groups("part:1")[0]["last-delivered-id"] == b"0-0"


# -- in a browser ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    with bench.client() as client:
        write(client)
        for number in range(120):
            client.redis.xgroup_create("many", f"group-{number:03}", "0", mkstream=True)

    async def test() -> None:
        page = await bench.log_in()
        await page.press("g")
        await page.press("g")
        await page.until("location.pathname === '/groups' && document.readyState === 'complete'")
        await bench.inspect("/groups", "/groups/group?streams=part&group=g", "/streams/groups?key=many")
        await page.click("a[rel=next]")
        await page.until("document.querySelectorAll('tbody tr').length === 20")
        await page.go(f"{bench.console.url}/groups/group?streams=part&group=g")
        await page.click("tbody tr:nth-child(2) input")
        assert await page.run("document.querySelector('#all').indeterminate")
        await page.fill("#to", "earliest")
        await page.press("Enter")
        await page.until("document.querySelector('#reset-result').textContent.includes('On 2 streams')")
        await page.click("#all")  # selects all again
        await page.click("#members button")
        await page.until("document.querySelector('#reset-result').textContent.includes('On 3 streams')")
        await page.click("#reset-result button.danger")
        done = "document.querySelector('#reset-result .done')?.textContent ?? ''"
        await page.until(f"({done}).includes('3 of 3 streams')")
        await page.click("#reset-result a")
        await page.until("(document.querySelector('tbody')?.textContent ?? '').includes('part:0')")

    bench.run(test())
    bench.check()
    with bench.client() as client:
        assert {str(client.tgroup_list(f"part:{at}")[0].offset) for at in range(3)} == {"0.0"}
