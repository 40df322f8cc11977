"""Dead letters: filter, read, replay."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tidelog.client import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run
from tidelog.console.application import ConsoleServer
from tidelog.testing import Server
from tidelog.topics import Topic, deadletters

EVIL = "<img src=x onerror=\"document.title='run'\">"


def write(server: Server, client: Client, count: int) -> None:
    """Dead letters of a topic ``orders``: some of shop.bill, some of shop.ship."""
    topic: Topic[dict[str, str]] = Topic("orders", dict, partitions=1, url=server.url)
    topic.sync.send({"note": "a first record creates the topic"})
    topic.sync.close()
    run(client, deadletters.ready("orders.dead", deadletters.home("orders")))
    for n in range(count):
        entry = Entry(StreamId(1, n), [b"n", b"%d" % n, b"note", EVIL.encode()])
        processor, error = ("shop.bill", ValueError(EVIL)) if n % 2 else ("shop.ship", KeyError("street"))
        fields = deadletters.fields_of("orders", 0, entry, None, processor, error, 3, "w1", 1_700_000_000_000)
        run(client, _one(deadletters.append("orders.dead", fields)))


def _one(call):  # type: ignore[no-untyped-def]
    return (yield [call])


def test_filter_read_and_replay(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        write(tidelog_server, client, 60)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            token = await visitor.csrf()
            assert "/deadletters?queue=orders.dead" in (await visitor.get("/deadletters"))[1]
            _, text, _ = await visitor.get("/deadletters?queue=orders.dead")
            assert "60 open" in text
            ids = re.findall(r'name="id" value="([^"]+)"', text)
            assert len(ids) == 50
            assert EVIL not in text
            following = re.search(r'rel="next" href="([^"]+)"', text)
            assert following is not None
            _, text, _ = await visitor.get(html.unescape(following[1]))
            assert text.count('name="id"') == 10
            _, text, _ = await visitor.get("/deadletters?queue=orders.dead:0&filter=SHIP")
            assert text.count('name="id"') == 30
            _, text, _ = await visitor.get(f"/deadletters/letter?queue=orders.dead&id={ids[0]}")
            assert "KeyError" in text
            assert "orders:0 1.0" in text
            for form, done in (({"id": ids[0]}, 1), ({"id": ids[0]}, 0), ({"action": "all"}, 59)):
                _, text, _ = await visitor.post("/deadletters/replay?queue=orders.dead", {"csrf": token} | form)
                assert f"{done} dead letter" in text
            assert (await visitor.post("/deadletters/replay?queue=orders.dead", {"csrf": token}))[0] == 400
            assert (await visitor.get(f"/deadletters/letter?queue=orders.dead&id={ids[0]}"))[0] == 404
            assert "no open dead letters" in (await visitor.get("/deadletters?queue=orders.dead"))[1]

        visit(tidelog_server, test, audit_file=str(path))
        assert client.tlen("orders:0") == 61
    lines = [line for line in audited(path) if line["action"] == "replay"]
    assert [line["detail"]["replayed"] for line in lines] == [1, 0, 59]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    with bench.client() as client:
        write(bench.server, client, 3)

    async def test() -> None:
        page = await bench.log_in(path="/deadletters?queue=orders.dead")
        await bench.inspect("/deadletters", "/deadletters?queue=orders.dead")
        await page.click("tbody tr:nth-child(2) a")
        await page.until("document.querySelector('#letter').open")
        assert "ValueError" in await page.run("document.querySelector('#letter-body').textContent")
        assert await page.run("document.querySelectorAll('main img').length") == 0
        await page.press("Escape")
        await page.until("!document.querySelector('#letter').open")
        await page.click("tbody input[name=id]")
        await page.click("button[value=selected]")
        await page.until("document.querySelector('#replay-result').textContent.includes('1 dead letter replayed')")
        await page.click("button[value=all]")
        await page.until("document.querySelector('#replay-result').textContent.includes('2 dead letters replayed')")

    bench.run(test())
    bench.check()
    with bench.client() as client:
        assert client.tlen("orders:0") == 4
