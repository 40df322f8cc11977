"""Dead letters of all kinds are found; their events are edited, previewed, and sent once."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tidelog.client import Client
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run, single
from tidelog.console.application import ConsoleServer
from tidelog.testing import Server
from tidelog.topics import Topic, deadletters, partition_of

EVIL = "</textarea><script>document.title='run'</script>"


class Order(msgspec.Struct):
    customer: str
    amount: int
    note: str = ""


class Basket(msgspec.Struct):
    customer: str
    items: list[str]


def write(server: Server, kind: Any, name: str, *events: dict[str, bytes], key: bytes = b"ann") -> list[StreamId]:
    """A topic and its dead letters, which had the key of ann."""
    topic: Topic[Any] = Topic(name, kind, partitions=4, partition_by="customer", url=server.url)
    topic.sync.ready()
    topic.sync.close()
    ids = []
    with server.client() as client:
        run(client, deadletters.ready(f"{name}.dead", deadletters.home(name)))
        for n, event in enumerate(events):
            entry = Entry(StreamId(1, n), [word for pair in event.items() for word in (pair[0].encode(), pair[1])])
            at = partition_of("ann", 4)
            fields = deadletters.fields_of(name, at, entry, key, "shop.bill", ValueError("no"), 3, "w1", 1)
            ids.append(run(client, single(deadletters.append(f"{name}.dead", fields))))
    return ids


def give_up(client: Client) -> None:
    """A message of the group ``mail`` that the server has moved to the stream ``jobs.dead``."""
    client.tappend("jobs", {"to": "ann"})
    for _ in range(2):
        client.tread(
            "jobs", "0", 1, group="mail", ttl=0, retry=1, max_deliveries=1, deadletter="jobs.dead", block=300
        )
    assert client.tlen("jobs.dead") == 1


def shown(text: str) -> dict[str, list[str]]:
    """The values of a form, as a browser sends them."""
    names = ("field", "nameform", "valueform")
    found = {
        name: [
            (re.findall(r'value="([^"]*)"', each) or [""])[0]
            for each in re.findall(rf'<input[^>]*name="{name}"[^>]*>', text)
        ]
        for name in names
    }
    found["value"] = re.findall(r"<textarea name=\"value\"[^>]*>\n?(.*?)</textarea>", text, re.DOTALL)
    return {name: [html.unescape(each).replace("\n", "\r\n") for each in values] for name, values in found.items()}


def hidden(text: str) -> dict[str, list[str]]:
    return {name: re.findall(rf'name="{name}" value="([^"]*)"', text) for name in ("fieldhex", "valuehex", "to")}


def test_edit_and_send_once(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    raw = b"\xff\x00"
    event = {"customer": b"ann", "amount": b"x", "note": EVIL.encode() + b"\n\nend", "raw": raw}
    (at,) = write(tidelog_server, Order, "orders", event)
    path = tmp_path / "audit.jsonl"
    query = f"?queue=orders.dead&id={at}"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}
        assert "Edit and resend" in (await visitor.get(f"/deadletters/letter{query}"))[1]
        status, text, _ = await visitor.get(f"/deadletters/edit{query}")
        assert status == 200
        assert EVIL not in text
        form = shown(text)
        assert form["valueform"] == ["text", "text", "text", "hex", "text"]
        assert form["value"][3] == "ff 00"

        async def preview(**values: str) -> tuple[int, str]:
            changed = [values.get(name, value) for name, value in zip(form["field"], form["value"], strict=True)]
            pairs = [(name, each) for name in form for each in ({**form, "value": changed})[name]]
            status, text, _ = await visitor.post(f"/deadletters/edit/preview{query}", pairs, **token)
            return status, text

        assert "No field is changed" in (await preview())[1]
        status, text = await preview(amount="many")
        assert (status, "must be int" in text) == (400, True)
        assert (await preview(raw="f"))[0] == 400
        status, text = await preview(amount="5", customer="bob")
        assert status == 200
        assert "2 fields changed" in text
        assert f"orders:{partition_of('bob', 4)}" in text
        sent = [(name, each) for name, values in hidden(text).items() for each in values]
        twice = [visitor.post(f"/deadletters/edit/send{query}", sent, **token) for _ in range(2)]
        texts = [found[1] for found in await asyncio.gather(*twice)]
        assert sorted("Sent as" in each for each in texts) == [False, True]
        assert sorted("Nothing was sent" in each for each in texts) == [False, True]
        assert (await visitor.get(f"/deadletters/edit{query}"))[0] == 404

    visit(tidelog_server, test, audit_file=str(path))
    with tidelog_server.client() as client:
        (entry,) = client.trange(f"orders:{partition_of('bob', 4)}")
        assert dict(entry.pairs) == {b"customer": b"bob", b"amount": b"5", b"note": event["note"], b"raw": raw}
        assert sum(client.tlen(f"orders:{n}") for n in range(4)) == 1
        assert run(client, deadletters.count("orders.dead")) == 0
    lines = [line for line in audited(path) if line["action"] == "edit and resend"]
    assert {(line["result"][:4], line["detail"].get("stream")) for line in lines} == {
        ("done", f"orders:{partition_of('bob', 4)}"), ("Ther", None),
    }  # fmt: skip
    assert "bob" not in path.read_text()


def test_a_record_in_json_stays_compact(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    (at,) = write(tidelog_server, Basket, "baskets", {"data": '{"customer":"ann","items":["é"]}'.encode()})
    query = f"?queue=baskets.dead&id={at}"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}
        form = shown((await visitor.get(f"/deadletters/edit{query}"))[1])
        assert form["valueform"] == ["json", "text"]
        for value, status, part in (
            ('{"customer": ', 400, "valid JSON"), ("[1]", 400, "JSON object"), ('{"items": []}', 400, "partition key"),
            ('{"customer": "eve", "items": ["é"]}', 200, f"baskets:{partition_of('eve', 4)}"),
        ):  # fmt: skip
            pairs = [("field", "data"), ("nameform", "text"), ("value", value), ("valueform", "json")]
            found = await visitor.post(f"/deadletters/edit/preview{query}", pairs, **token)
            assert (found[0], part in found[1]) == (status, True), found[1]
        sent = [(name, each) for name, values in hidden(found[1]).items() for each in values]
        await visitor.post(f"/deadletters/edit/send{query}", sent, **token)

    visit(tidelog_server, test)
    with tidelog_server.client() as client:
        (entry,) = client.trange(f"baskets:{partition_of('eve', 4)}")
        assert entry["data"].decode() == '{"customer":"eve","items":["é"]}'


def test_queues_of_all_kinds_are_found(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    write(tidelog_server, Order, "orders", {"customer": b"ann", "amount": b"1"})
    path = tmp_path / "audit.jsonl"
    with tidelog_server.client() as client:
        give_up(client)
        run(client, deadletters.ready("flow.main.dead", deadletters.home("events", deadletters.NO_PARTITION)))
        run(client, deadletters.ready("failures", deadletters.home("visits")))

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            token = await visitor.csrf()
            _, text, _ = await visitor.get("/deadletters")
            for expected in ("topic orders", "stream events", "topic visits", "group mail of jobs"):
                assert expected in text
            assert "0 open in <span class=\"mono\">failures<" in (await visitor.get("/deadletters?queue=failures:0"))[1]
            _, text, _ = await visitor.get("/deadletters?queue=jobs.dead")
            assert "1 open" in text
            assert "maxdeliveries" in text
            (at,) = re.findall(r'name="id" value="([^"]+)"', text)
            forged = await visitor.post("/deadletters/replay?queue=jobs.dead", {"csrf": token, "id": at})
            assert "may be forged" in forged[1]
            form = {"csrf": token, "action": "all", "to": "jobs"}
            assert "1 dead letter replayed" in (await visitor.post("/deadletters/replay?queue=jobs.dead", form))[1]

        visit(tidelog_server, test, audit_file=str(path))
        assert [entry.text() for entry in client.trange("jobs")][-1] == {"to": "ann"}
        assert (client.tlen("jobs"), client.tlen("jobs.dead")) == (2, 1)  # the stream of the group is not evicted


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    event = {"customer": b"ann", "amount": b"x", "note": EVIL.encode(), "json": b'{"a":[1,2]}'}
    (at,) = write(bench.server, Order, "orders", event)
    query = f"?queue=orders.dead&id={at}"

    async def test() -> None:
        page = await bench.log_in(path="/deadletters")
        await page.click("tbody th a")
        await page.until("document.readyState === 'complete' && location.search === '?queue=orders.dead'")
        await page.click("tbody td a")
        await page.click("#edit")
        await page.until("location.pathname === '/deadletters/edit' && document.readyState === 'complete'")
        await bench.inspect(f"/deadletters/edit{query}")
        await page.click("#add-field")
        await page.until("document.querySelectorAll('#event-fields .field').length === 6")
        await page.click("form button.primary")
        await page.until("document.querySelector('#preview').textContent.includes('No field is changed')")
        await page.fill("#event-fields .field:nth-child(2) textarea", "many")
        await page.click("form button.primary")
        await page.until("document.querySelector('#preview').textContent.includes('must be int')")
        await page.fill("#event-fields .field:nth-child(2) textarea", "5")
        await page.click("form button.primary")
        await page.until("document.querySelector('#preview').textContent.includes('1 field changed')")
        for width in (1280, 400):
            await page.size(width, 900)
            assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        await page.size(1280, 900)
        await page.click("#send-edited")
        await page.until("document.querySelector('#preview').textContent.includes('Sent as')")
        assert await page.run("document.title") != "run"

    bench.run(test())
    bench.check("the server responded with a status of 400")
    with bench.client() as client:
        (entry,) = client.trange(f"orders:{partition_of('ann', 4)}")
        assert entry.text() == {name: value.decode() for name, value in event.items()} | {"amount": "5"}
