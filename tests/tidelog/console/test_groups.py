"""Groups: lag, pending messages, resets with a preview, ack, nack, claim."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import RedisServer
from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tidelog.console import groups
from tidelog.console.application import ConsoleServer
from tidelog.console.groups import PENDING
from tidelog.testing import Server

GROUP = "/streams/group?key=s&group=g"


def plain(text: str) -> str:
    """The text of HTML, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.mark.parametrize("kind", ["readers", "consumers"])
def test_lag_pending_and_changes(tidelog_server: Server, tmp_path: Path, kind: str) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        ids = [client.tappend("s", {"n": n}) for n in range(10)]
        if kind == "readers":
            client.tread("s", "0", 4, group="g", retry=60_000)
        else:
            client.redis.xgroup_create("s", "g", "0")
            client.redis.xreadgroup("g", "c1", {"s": ">"}, count=4)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            token = await visitor.csrf()
            _, text, _ = await visitor.get("/streams/groups?key=s")
            assert "1 group" in text
            assert re.search(r"g 6 \S+ s 4 ", plain(text))
            _, text, _ = await visitor.get(GROUP)
            assert "6 entries" in text
            assert text.count('name="id"') == 4

            async def change(action: str, entry: object, **more: str) -> str:
                form = {"csrf": token, "action": action, "id": str(entry)} | more
                return plain((await visitor.post("/streams/group/settle?key=s&group=g", form))[1])

            assert "1 of 1 acknowledged" in await change("ack", ids[0])
            assert "0 of 1 acknowledged" in await change("ack", ids[0])
            assert "1 of 1 returned" in await change("nack", ids[1])
            assert "Enter the consumer" in await change("claim", ids[2])
            if kind == "consumers":
                assert "1 of 1 claimed" in await change("claim", ids[2], consumer="c2")
                _, text, _ = await visitor.get(GROUP)
                assert "c2" in plain(text)
            assert "Select 1 to" in await change("drop", ids[2])

        visit(tidelog_server, test, audit_file=str(path))
        assert client.tpending("s", "g").count == 3
    actions = [line["action"] for line in audited(path)]
    assert actions[:4] == ["login", "ack", "ack", "nack"]
    assert audited(path)[1]["target"] == "s g"
    assert audited(path)[1]["detail"] == {"ids": [str(ids[0])]}


def test_a_reset_has_a_preview(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        ids = [client.tappend("s", {"n": f"<b>{n}</b>"}) for n in range(10)]
        client.tread("s", "0", 8, group="g")

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            token = await visitor.csrf()

            async def preview(to: str) -> str:
                return (await visitor.post("/streams/group/preview?key=s&group=g", {"csrf": token, "to": to}))[1]

            text = await preview("earliest")
            assert "8 entries will be read again" in plain(text)
            assert re.findall(r"&lt;b&gt;(\d)", text) == ["0", "1", "2", "3", "4"]
            assert "2 entries will be skipped" in plain(await preview("latest"))
            assert "5 entries will be read again" in plain(await preview(str(ids[2])))
            assert "8 entries will be read again" in plain(await preview("2020-01-01T00:00:00Z"))
            assert "no entry will be read again" in plain(await preview(str(ids[7])))
            assert "must be earliest, latest, an ID" in plain(await preview("yesterday"))

            form = {"csrf": token, "after": str(ids[2]), "before": str(ids[7])}
            client.tread("s", "0", 1, group="g")  # the group reads on
            status, text, _ = await visitor.post("/streams/group/reset?key=s&group=g", form)
            assert (status, "has changed since the preview" in text) == (409, True)
            status, text, _ = await visitor.post("/streams/group/reset?key=s&group=g", form | {"moving": "yes"})
            assert (status, f"The group is at {ids[2]}" in text) == (200, True)
            assert (await visitor.get("/streams/group?key=s&group=none"))[0] == 404
            assert (await visitor.get("/streams/group?key=none&group=g"))[0] == 404

        visit(tidelog_server, test, audit_file=str(path))
        assert client.tread("s", "0", 1, group="g").entries[0]["n"] == b"<b>3</b>"
    (line,) = [line for line in audited(path) if line["action"] == "reset"]
    assert line["detail"] == {"before": str(ids[8]), "after": str(ids[2])}


def test_many_consumers(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has those with the most pending messages."""
    monkeypatch.setattr(groups, "CONSUMERS", 3)
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        for number in range(5):
            client.tappend("s", {"n": number})
        client.redis.xgroup_create("s", "g", "0")
        for number in range(5):
            client.redis.xreadgroup("g", f"consumer-{number}", {"s": ">"}, count=1 if number > 2 else None)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/streams/group?key=s&group=g")
        assert text.count('<th scope="row" class="mono">consumer-') == 3
        assert "The 3 of 5 consumers with the most pending messages." in text
        assert '<th scope="row" class="mono">consumer-0</th>' in text

    visit(tidelog_server, test, history=False)


def test_pending_messages_are_paged(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(PENDING + 7)])
        client.tread("s", "0", 1000, group="g", retry=60_000)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get(GROUP)
        first = re.findall(r'name="id" value="([^"]+)"', text)
        following = re.search(r'href="([^"]+)" rel="next"', text)
        assert following is not None
        _, text, _ = await visitor.get(html.unescape(following[1]))
        second = re.findall(r'name="id" value="([^"]+)"', text)
        assert (len(first), len(second), len({*first, *second})) == (PENDING, 7, PENDING + 7)

    visit(tidelog_server, test)


def test_a_redis_server(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for n in range(6):
            client.xadd("s", {"n": n})
        client.xgroup_create("s", "g", "0")
        client.xreadgroup("g", "c1", {"s": ">"}, count=4)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in("default", "")
            token = await visitor.csrf()
            _, text, _ = await visitor.get(GROUP)
            assert "2 entries" in text
            assert "Return" not in plain(text)
            (entry, *_) = re.findall(r'name="id" value="([^"]+)"', text)
            form = {"csrf": token, "action": "ack", "id": entry}
            assert "1 of 1 acknowledged" in (await visitor.post("/streams/group/settle?key=s&group=g", form))[1]
            _, text, _ = await visitor.post("/streams/group/preview?key=s&group=g", {"csrf": token, "to": "earliest"})
            assert "4 entries will be read again" in plain(text)
            after, before = re.findall(r'name="(?:after|before)" value="([^"]+)"', text)
            form = {"csrf": token, "after": after, "before": before}
            assert "The group is at 0-0" in (await visitor.post("/streams/group/reset?key=s&group=g", form))[1]

        visit(f"redis://127.0.0.1:{redis_server.port}", test)
        assert client.xinfo_groups("s")[0]["last-delivered-id"] == b"0-0"


# -- in a browser ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    with bench.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(10)])
        client.redis.xgroup_create("s", "g", "0")
        client.redis.xreadgroup("g", "c1", {"s": ">"}, count=4)

    async def test() -> None:
        page = await bench.log_in(path="/streams/stream?key=s")
        await page.click("#groups")
        await page.until("location.pathname === '/streams/groups' && document.readyState === 'complete'")
        await bench.inspect("/streams/groups?key=s", GROUP)
        await page.fill("#to", "earliest")
        await page.click("form[hx-post*=preview] button")
        await page.until("document.querySelector('#reset-result').textContent.includes('4 entries')")
        await page.click("#reset-result button.danger")
        await page.until("document.querySelector('#reset-result .done') !== null")
        await page.click("tbody input[name=id]")
        await page.click("button[value=ack]")
        await page.until("document.querySelector('#settle-result').textContent.includes('1 of 1 acknowledged')")
        await page.click("#settle-result a")
        await page.until("document.querySelectorAll('tbody input[name=id]').length === 3")

    bench.run(test())
    bench.check()
    with bench.client() as client:
        assert client.redis.xinfo_groups("s")[0]["lag"] == 10
