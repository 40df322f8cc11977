"""Searching a range of a stream, and comparing two entries, on tidelog and on redis-server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from tests.conftest import RedisServer
from tests.tidelog.console.consolekit import FAINT, NAMELESS, ConsoleBench, Visitor, add_user, benched, visit
from tidelog.client.entries import Entry, StreamId
from tidelog.console import search
from tidelog.console.application import ConsoleServer
from tidelog.console.compared import MarkedText, compared
from tidelog.console.pages import search as page
from tidelog.console.search import EntryFilter
from tidelog.testing import Server, running_server
from tidelog.topics import Topic

EVIL = "<script>document.title='run'</script>"


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def searched(visitor: Visitor, words: str, **given: str) -> list[tuple[str, Any]]:
    query = urlencode({"key": "s", "words": words} | {name.rstrip("_"): value for name, value in given.items()})
    status, text, _ = await visitor.get(f"/streams/search/events?{query}")
    assert status == 200, text
    return events(text)


def entry(*flat: str | bytes) -> Entry:
    return Entry(StreamId(5, 1), [each.encode() if isinstance(each, str) else each for each in flat])


# -- which entries match -----------------------------------------------------------------------------------------
def test_text_case_and_field() -> None:
    one = entry("city", "Tromsø", "note", b"\xff Oslo")
    for words, options, expected in (
        ("oslo", {}, True), ("OSLO", {}, True), ("OSLO", {"match_case": True}, False),
        ("Oslo", {"match_case": True}, True),
        ("TROMSØ", {}, True), ("TROMSØ", {"match_case": True}, False), ("cit", {}, True),
        ("oslo", {"name": "city"}, False), ("oslo", {"name": "note"}, True), ("note", {"name": "note"}, False),
        ("bergen", {}, False),
    ):  # fmt: skip
        assert EntryFilter(words, **options).matches(one) == expected, (words, options)


def test_differences_of_fields_and_of_json() -> None:
    left = entry("a", "same", "n", "the price is 10 now", "j", '{"b":[1,{"c":"x"}],"d":1}', "gone", "1", "a", "1")
    right = entry("a", "same", "n", "the price is 12 now", "j", '{"b":[1,{"c":"y"}],"d":"1"}', "new", "2", "a", "1")
    rows, left_out = compared(left, right)
    found = {row.name: row for row in rows}
    assert left_out == 0
    assert [row.name for row in rows if row.same] == ["a", "j.b[0]", "a (2)"]
    assert found["n"].left == MarkedText("the price is 1", "0", " now")
    assert found["n"].right == MarkedText("the price is 1", "2", " now")
    assert (found["j.b[1].c"].right, found["j.d"].right) == (MarkedText('"', "y", '"'), MarkedText("", '"1"', ""))
    assert (found["gone"].right, found["new"].left) == (None, None)


@pytest.mark.parametrize(
    "values",
    [
        (b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000), (b"x" * 10**6, b"x" * 10**6 + b"y"),
        (json.dumps(dict.fromkeys(map(str, range(5000)))).encode(), b"{}"), (b"\xff\x00", b"\xff\x01"), (b"", b"x"),
    ],
    ids=["deep", "long", "many", "binary", "empty"],
)  # fmt: skip
def test_large_and_odd_values_are_compared_within_limits(values: tuple[bytes, bytes]) -> None:
    rows, _ = compared(entry("v", values[0]), entry("v", values[1]))
    assert any(not row.same for row in rows)
    assert all(
        len(part) < 1000 for row in rows for side in (row.left, row.right) if side
        for part in (side.before, side.differing, side.after)
    )  # fmt: skip


# -- searches ----------------------------------------------------------------------------------------------------
def test_a_range_is_searched_in_steps(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(f"value {n}",) for n in range(2000)])
        for n in range(3):
            client.tappend("s", {"n": f"needle {n} {EVIL}"})
        last = client.tappend("s", {"n": "the end"})
        ids = [found.id for found in client.trange("s")]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        found = await searched(visitor, "NEEDLE")
        name, data = found[-1]
        assert (name, data["examined"], data["total"]) == ("done", 2004, 2004)
        assert (data["why"], data["following"]) == ("the whole range was searched", "")
        rows = "".join(data["rows"] for _, data in found)
        assert [rows.count(f"needle {n}") for n in range(3)] == [1, 1, 1]
        assert rows.index("needle 2") < rows.index("needle 0")
        assert "<script>" not in rows
        assert sum(data["hits"] for _, data in found) == 3

        data = (await searched(visitor, "needle", order="oldest", from_=str(ids[2001]), to=str(ids[2002])))[-1][1]
        assert (data["examined"], data["hits"]) == (2, 2)
        assert data["rows"].index("needle 1") < data["rows"].index("needle 2")
        data = (await searched(visitor, "value 7", to="#8"))[-1][1]
        assert (data["examined"], data["total"], data["hits"]) == (8, 8, 1)
        data = (await searched(visitor, "end", from_=f"{last.ms}"))[-1][1]  # the first entry of a millisecond
        assert data["hits"] == 1

        # It stops at a number of hits, and continues where it stopped.
        data = (await searched(visitor, "value"))[-1][1]
        assert (data["why"], data["examined"]) == (f"{search.FOUND} entries were found", 4 + search.FOUND)
        data = (await searched(visitor, "value", following=data["following"]))[-1][1]
        assert (data["examined"], data["total"]) == (search.FOUND, 2004)
        data = (await searched(visitor, "needle", order="oldest", following=f"0 ({ids[2001]}"))[-1][1]
        assert (data["examined"], data["hits"]) == (2, 1)

        for query in ("", "&words=" + "x" * 1001, "&words=x&from=yesterday", "&words=x&following=yes"):
            assert (await visitor.get(f"/streams/search/events?key=s{query}"))[0] == 400
        assert (await visitor.get("/streams/search?key=none"))[0] == 404
        (event,) = events((await visitor.get("/streams/search/events?key=none&words=x"))[1])
        assert event[1]["why"] == "the whole range was searched"

    visit(tidelog_server, test)


def test_the_partitions_of_a_topic_are_searched_in_order(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    topic: Topic[Any] = Topic("t", dict, partitions=4, url=tidelog_server.url)
    topic.sync.send({"n": "needle 0"})  # partitions 0 and 2 have entries, 1 and 3 do not exist
    with tidelog_server.client() as client:
        client.redis.delete("t:0", "t:1", "t:2", "t:3")
        client.tmappend("t:0", ["n"], [(f"needle {n}",) for n in range(60)])
        client.tmappend("t:2", ["n"], [(f"needle {n}",) for n in range(60)])

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/streams/search/events?topic=t&words=needle&order=oldest")
        data = events(text)[-1][1]
        assert (data["why"], data["examined"], data["total"]) == ("100 entries were found", 100, 120)
        rows = "".join(data["rows"] for _, data in events(text))
        assert re.findall(r">(t:\d)</a>", rows) == ["t:0"] * 60 + ["t:2"] * 40
        following = urlencode({"following": data["following"]})
        _, text, _ = await visitor.get(f"/streams/search/events?topic=t&words=needle&order=oldest&{following}")
        data = events(text)[-1][1]
        assert (data["why"], data["examined"], data["following"]) == ("the whole range was searched", 20, "")
        assert "one after the other" in (await visitor.get("/streams/search?topic=t"))[1]
        for query in ("topic=t&words=x&following=x", "topic=t&words=x&following=1%20x"):
            assert (await visitor.get(f"/streams/search/events?{query}"))[0] == 400
        assert (await visitor.get("/streams/search?topic=none"))[0] == 404

    visit(tidelog_server, test)


def test_a_redis_server_is_searched(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for n in range(30):
            client.xadd("s", {"n": f"value {n}"})

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in("default", "")
        for order in ("newest", "oldest"):
            found = await searched(visitor, "value 7", order=order)
            assert (found[-1][1]["examined"], found[-1][1]["total"]) == (30, None)
            assert sum(data["hits"] for _, data in found) == 1

    visit(f"redis://127.0.0.1:{redis_server.port}", test)


def test_large_entries_are_read_a_few_at_a_time(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        for n in range(30):
            client.tappend("s", {"n": n, "v": b"x" * 400_000})
    sizes: list[int] = []
    send = search._send

    async def sent(link: Any, *calls: Any) -> Any:
        found = await send(link, *calls)
        if isinstance(found[0], list):
            sizes.append(sum(sum(map(len, each.flat)) for each in found[0]))
        return found

    monkeypatch.setattr(search, "_send", sent)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        assert (await searched(visitor, "y"))[-1][1]["examined"] == 30

    visit(tidelog_server, test)
    assert max(sizes[1:]) <= search.BYTES  # the first step has few entries, of unknown size
    assert len(sizes) > 10


def test_searches_are_limited_and_end_with_the_browser(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search whose page is left closes its connection to the server."""
    monkeypatch.setattr(page, "SEARCHES", 1)
    monkeypatch.setattr(search, "SHOWN_EVERY", 0.0)
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(1000)])
        send = search._send

        async def slow(link: Any, *calls: Any) -> Any:
            found = await send(link, *calls)
            if not isinstance(found[0], list):
                return found
            await asyncio.sleep(0.01)
            return [found[0][:1] * 2]  # the range never ends

        monkeypatch.setattr(search, "_send", slow)
        monkeypatch.setattr(search, "ENTRIES", 2)
        monkeypatch.setattr(search, "FIRST", 2)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            async with visitor.session.get(f"{visitor.url}/streams/search/events?key=s&words=none") as answer:
                assert b"retry" in await answer.content.readline()
                while b"examined" not in await answer.content.readline():
                    pass
                assert (await visitor.get("/streams/search/events?key=s&words=x"))[0] == 429
                answer.close()
            async with asyncio.timeout(20):
                monkeypatch.setattr(search, "_send", send)
                while (await visitor.get("/streams/search/events?key=s&words=x"))[0] == 429:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while sum(each["name"] == "tidelog-console" for each in client.redis.client_list()) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        visit(tidelog_server, test, history=False)


def test_entries_of_a_key_that_is_not_text_are_compared(tidelog_server: Server) -> None:
    """The form leaves the stream empty, because an input can't have all bytes. Hidden values stay hidden."""
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        ids = [client.tappend(b"\xff", {"n": f"secret {n}"}) for n in range(3)]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        path = f"/streams/entry?key=%ff&id={ids[2]}&view=compare"
        for query in ("", f"&with={ids[0]}&of="):
            _, text, _ = await visitor.get(path + query)
            assert "1 difference" in text
            assert 'name="of" value=""' in text
            assert text.count("<mark>") == 2
        _, text, _ = await visitor.get(path, Cookie=f"{visitor_cookie(visitor)}; tidelog_console_values=hidden")
        assert ("1 difference" in text, "secret" in text) == (True, False)

    visit(tidelog_server, test)


def visitor_cookie(visitor: Visitor) -> str:
    return "; ".join(f"{each.key}={each.value}" for each in visitor.session.cookie_jar)


def test_a_search_reports_the_loss_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    send = search._send

    with running_server() as server:
        add_user(server, "ann")
        with server.client() as client:
            client.tmappend("s", ["n"], [(n,) for n in range(1000)])

        async def killing(link: Any, *calls: Any) -> Any:
            if calls[0].args[0] != "TCOUNT":
                await asyncio.to_thread(server.kill)
            return await send(link, *calls)

        monkeypatch.setattr(search, "_send", killing)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            (found,) = await searched(visitor, "x")
            assert found[0] == "problem"
            assert str(server.port) in found[1]

        visit(server, test, history=False)


# -- in a browser ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    with bench.client() as client:
        client.tmappend("s", ["n", "item"], [(n, "tea" if n % 3 else EVIL) for n in range(600)])

    async def test() -> None:
        page = await bench.log_in(path="/streams/stream?key=s")
        await page.click("#search")
        await page.fill("#words", "document")
        await page.press("Enter")
        state = "(document.querySelector('#search-state')?.textContent ?? '')"
        await page.until(f"{state}.includes('100 found') && {state}.endsWith('100 entries were found')")
        await page.click("#continue")
        await page.until(f"{state}.startsWith('200 found, ') && {state}.includes('of 600')")
        assert await page.run("document.querySelectorAll('#entries tr').length") == 200
        address = await page.run("location.pathname + location.search")
        await bench.inspect(address, ready=f"{state}.startsWith('100 found')")
        await page.click("#entries a")
        await page.until("document.querySelector('#entry').open")
        compare = "#entry .segments button:nth-child(5)"
        await page.click(compare)
        await page.until("document.querySelectorAll('#entry .compared mark').length === 4")
        for width in (1280, 400):
            await page.size(width, 900)
            for scheme in ("light", "dark"):
                await page.colors(scheme)
                assert await page.run(FAINT) == await page.run(NAMELESS) == []
                assert await page.run("document.querySelector('#entry').scrollWidth <= innerWidth")
        await page.size(1280, 900)
        await page.colors("light")
        await page.fill("#with", "no ID")
        await page.click("#entry .compare button")
        await page.until("document.querySelector('#entry .problem')?.textContent.includes('no ID')")
        assert await page.run("document.title") == "Search s · tidelog console"

    bench.run(test())
    bench.check()
