"""Topics: their list, partitions, groups, decoded records merged by time, delayed records, retention."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import zstandard

from tests.tidelog.console.consolekit import ConsoleBench, Visitor, add_user, audited, benched, visit
from tests.waiting import eventually, until
from tidelog.client import Client
from tidelog.client.entries import Entry, StreamId, StreamPolicy
from tidelog.console import merged, topics
from tidelog.console.application import ConsoleServer
from tidelog.console.pages.stream import VIEWS
from tidelog.console.records import TopicDecoder
from tidelog.testing import Server
from tidelog.topics import Retention, Topic, admin
from tidelog.topics.settings import TopicSettings

EVIL = "<script>document.title='run'</script>"


class Order(msgspec.Struct):
    id: int
    customer: str
    paid: bool = False
    at: datetime | None = None


class Basket(msgspec.Struct):
    customer: str
    lines: list[dict[str, int]]


def plain(text: str) -> str:
    """The text of HTML, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def orders(url: str, **options: Any) -> Topic[Order]:
    return Topic("orders", Order, partition_by="customer", partitions=4, url=url, **options)


def baskets(url: str) -> Topic[Basket]:
    return Topic("baskets", Basket, partition_by="customer", partitions=2, codec="msgpack+zstd", url=url)


def entry(*flat: str | bytes) -> Entry:
    return Entry(StreamId(5, 1), [each.encode() if isinstance(each, str) else each for each in flat])


# -- decoding --------------------------------------------------------------------------------------------------
def decoder(codec: str, **fields: str) -> TopicDecoder:
    return TopicDecoder("t", TopicSettings(4, None, codec, fields))


def test_plain_records_have_the_types_of_the_settings() -> None:
    one = decoder("plain", n="int", x="float", ok="bool", at="datetime", raw="bytes", s="str", e="enum")
    found = one.decode(entry("n", "7", "x", "1.5", "ok", "true", "at", "2026-01-01T00:00:00Z", "raw", b"\xff", "s", "1",
                             "e", "red", "new", "9"))  # fmt: skip
    assert found.value == {
        "n": 7, "x": 1.5, "ok": True, "at": "2026-01-01T00:00:00Z", "raw": {"hex": "ff"}, "s": "1", "e": "red",
        "new": "9",
    }  # fmt: skip
    assert found.problems == []
    wrong = one.decode(entry("n", "seven", "ok", "maybe", "s", b"\xff", "x", "nan", "at", "1" * 5000))
    assert [problem.split(":")[0] for problem in wrong.problems] == ["n", "ok", "s", "at"]
    assert wrong.value["x"] == "nan"
    assert decoder("plain", n="int").decode(entry("n", "1" * 10_000)).value["n"] == "1" * 10_000
    traced = decoder("plain").decode(entry("n", "1", "traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"))
    assert traced.value == {"n": "1"}


def test_packed_records() -> None:
    value = {"n": 7, "deep": {"a": [1, None, 2.5]}, "raw": b"\xff", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    for codec in ("msgpack", "msgpack+zstd"):
        data = msgspec.msgpack.encode(value)
        packed = zstandard.ZstdCompressor().compress(data) if "zstd" in codec else data
        found = decoder(codec, n="int").decode(entry("data", packed))
        assert found.problems == []
        assert json.loads(found.as_json()) == value | {"raw": {"hex": "ff"}, "at": "2026-01-01 00:00:00+00:00"}
    found = decoder("json", n="int", s="str").decode(entry("data", '{"n": true, "s": 5, "x": "<b>"}'))
    assert [problem.split(":")[0] for problem in found.problems] == ["n", "s"]
    assert decoder("json").short(entry("data", '{"n": {"a": 1}}')) == [("n", '{"a": 1}')]
    keys = decoder("msgpack").decode(entry("data", msgspec.msgpack.encode({1: 2, b"k": 3})))
    assert keys.value == {"1": 2, "6b": 3}
    assert "object with fields" in decoder("msgpack").decode(entry("data", b"\x07")).problems[0]


def bomb() -> bytes:
    """30 KiB that are 1 GiB decompressed."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    return b"".join([compressor.compress(bytes(1 << 24)) for _ in range(64)]) + compressor.flush()


def test_records_that_cannot_be_read_are_shown_with_the_reason() -> None:
    deep = b"\x91" * 100_000 + b"\x90"
    for codec, data, reason in (
        ("json", b"{", "can't be read as json"), ("json", b"[" * 100_000, "can't be read"), ("msgpack", deep, "read"),
        ("json", b"[" * 500 + b"]" * 500, "levels"), ("json+zstd", b"no zstd", "can't be read"),
        ("msgpack+zstd", bomb(), "1,073,741,824 bytes"), ("json", b'"' + b"x" * (1 << 20) + b'"', "1,048,578 bytes"),
    ):  # fmt: skip
        found = decoder(codec).decode(entry("data", data))
        assert found.value is None
        assert reason in found.problems[0], found.problems
        assert decoder(codec).short(entry("data", data))[0][0] == "data"
        assert decoder(codec).with_fields(entry("data", data)) is None
    assert "no field 'data'" in decoder("json").decode(entry("x", "1")).problems[0]
    unknown = decoder("avro").decode(entry("x", "1"))
    assert (unknown.value, unknown.problems) == (
        {"x": "1"}, ["The console does not know the codec avro: values are text."]
    )  # fmt: skip


# -- pages -------------------------------------------------------------------------------------------------------
def test_the_list_and_a_topic(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "bob", "+@all", "~topic:orders")
    url = tidelog_server.url
    orders(url, partition_size=1000).sync.send_many(Order(n, f"customer {n}") for n in range(100))
    baskets(url).sync.send(Basket("ann", [{"a": 1}]))
    with tidelog_server.client() as client:
        client.redis.set("topic:broken", "{")
        client.redis.set("topic:new", '{"version": 99}')
        for partition in range(4):
            client.tread(f"orders:{partition}", "0", 5, group="bill", retry=60_000)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        text = plain((await visitor.get("/topics"))[1])
        assert re.search(r" baskets 2 1 [\d.]+ /s [^ ]+ m?s ago \S+ \S+ \S+ msgpack\+zstd customer ", text), text
        assert re.search(r" orders 4 100 1\.7 /s ", text)
        assert "broken the key 'topic:broken' does not have the settings" in text
        assert "this program supports 1" in text
        assert " baskets " not in plain((await visitor.get("/topics?pattern=ord"))[1])
        monkeypatch.setattr(topics, "LISTED", 3)
        assert "open the topic to see its partitions" in (await visitor.get("/topics"))[1]
        monkeypatch.undo()

        text = plain((await visitor.get("/topics/topic?name=orders"))[1])
        assert "Records 100 in 4 partitions" in text
        assert "1,000 entries per partition; others are evicted when all groups have finished them" in text
        assert re.search(r" bill 80 [\d.]+ m?s 20 4 ", text)
        assert text.count("COUNT 1000 GROUPS EXACT") == 4
        for path, status in (
            ("/topics/topic", 400), ("/topics/topic?name=none", 404), ("/topics/topic?name=broken", 400),
            ("/topics/records?name=orders&before=1", 400), ("/topics/records?name=none", 404),
        ):  # fmt: skip
            assert (await visitor.get(path))[0] == status, path
        _, text, _ = await visitor.get("/streams/stream?key=orders:1")
        assert 'href="/topics/topic?name=orders"' in text
        await visitor.post("/logout", {"csrf": await visitor.csrf()})
        await visitor.log_in("bob")
        _, text, _ = await visitor.get("/topics/topic?name=orders")
        assert text.count("NOPERM") == 5  # four partitions, and the groups

    visit(tidelog_server, test, history=False)


def test_records_are_merged_by_time_and_paged(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged, "PAGE", 30)
    add_user(tidelog_server, "ann")
    topic: Topic[Any] = Topic("t", dict, partitions=5, url=tidelog_server.url)
    topic.sync.send({"n": "first"})
    with tidelog_server.client() as client:
        client.redis.delete(*(f"t:{at}" for at in range(5)))
        expected = []
        for n in range(130):  # partition 4 stays empty; IDs are equal in two partitions
            ms, at = 1000 + n // 2, n * 7 % 4
            client.redis.xadd(f"t:{at}", {"n": n}, id=f"{ms}-{n % 2 * (n % 3)}")
        for at in range(4):
            expected += [(each.id, at, each["n"].decode()) for each in client.trange(f"t:{at}")]
        expected.sort(reverse=True)

    def shown(text: str) -> list[str]:
        return re.findall(r'<span class="fieldname">n</span> <span class="mono">(\d+)</span>', text)

    def link(text: str, name: str) -> str:
        found = re.search(rf'id="{name}"[^>]* href="([^"]+)"', text)
        return html.unescape(found[1]) if found else ""

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        seen: list[str] = []
        path = "/topics/records?name=t"
        while path:
            _, text, _ = await visitor.get(path)
            seen += shown(text)
            path = link(text, "older")
        assert seen == [n for _, _, n in expected]
        back: list[str] = shown(text)
        while path := link(text, "newer"):
            _, text, _ = await visitor.get(path)
            back = [n for n in shown(text) if n not in back] + back
        assert back == seen
        _, text, _ = await visitor.get("/topics/records?name=t&after=0:0")
        assert shown(text) == seen[-30:]
        _, text, _ = await visitor.get("/topics/records?name=t&at=1010")
        assert shown(text) == [n for at, _, n in expected if at.ms <= 1010][:30]
        assert "is not a position" in (await visitor.get("/topics/records?name=t&at=never"))[1]

    visit(tidelog_server, test)


def test_records_are_decoded_and_searched(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "bob", "+@all", "~baskets:*")
    baskets(tidelog_server.url).sync.send_many(Basket(f"customer {n}", [{"sku": 1000 + n}]) for n in range(50))
    with tidelog_server.client() as client:
        found = [(f"baskets:{at}", each.id) for at in range(2) for each in client.trange(f"baskets:{at}")]
        for partition in range(2):
            client.tread(f"baskets:{partition}", "0", 5, group="g")
    key, at = found[0]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/topics/records?name=baskets")
        assert plain(text).count("[{\"sku\": 10") == 50
        _, text, _ = await visitor.get(f"/streams/entry?key={key}&id={at}")
        assert '"sku": 10' in plain(text)
        assert "view=record" in text
        assert "codec msgpack+zstd" in plain(text)
        form: Any = {"csrf": await visitor.csrf(), "to": "earliest"}
        _, text, _ = await visitor.post("/streams/group/preview?key=baskets:0&group=g", form)
        assert plain(text).count("lines [{\"sku\": 10") == 5
        form["stream"] = [b"baskets:0".hex(), b"baskets:1".hex()]
        _, text, _ = await visitor.post("/groups/preview?group=g", form)
        assert plain(text).count("lines [{\"sku\": 10") == 2
        hits = 0
        for partition in range(2):
            _, text, _ = await visitor.get(f"/streams/search/events?key=baskets:{partition}&words=1033")
            hits += text.count("customer 33")
            _, text, _ = await visitor.get(f"/streams/search/events?key=baskets:{partition}&words=1033&field=customer")
            assert "customer 33" not in text
        assert hits == 1
        first, second = [each for each in found if each[0] == key][:2]
        _, text, _ = await visitor.get(f"/streams/entry?key={key}&id={first[1]}&view=compare&with={second[1]}")
        assert "lines[0].sku" in plain(text)
        await visitor.post("/logout", {"csrf": await visitor.csrf()})
        await visitor.log_in("bob")  # may read the partitions, but not the settings
        status, text, _ = await visitor.get(f"/streams/entry?key={key}&id={at}")
        assert (status, "view=record" in text) == (200, False)
        assert (await visitor.get(f"/streams/entry?key={key}&id={at}&view=record"))[0] == 400

    visit(tidelog_server, test, history=False)


def test_delayed_records_are_listed_and_cancelled(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "bob", "~*", "+@all", "-tdelay")
    path = tmp_path / "audit.jsonl"
    topic = orders(tidelog_server.url)
    topic.sync.send(Order(0, "ann"))
    for n in range(60):
        topic.sync.send(Order(n, f"customer {n}"), delay=3600 + n)
    odd = b"\xff token"
    with tidelog_server.client() as client:
        client.tdelay("s", {"n": EVIL}, ms=10**7, token=odd)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            _, text, _ = await visitor.get("/topics/delayed?name=orders")
            ids = re.findall(r'<span class="fieldname">id</span> <span class="mono">(\d+)</span>', text)
            assert ids == [str(n) for n in range(50)]
            assert "60, the first 50 by due time" in plain(text)
            _, text, _ = await visitor.get("/streams/delayed?key=s")
            assert "<script>document" not in text
            assert r"\xff token" in text
            (token,) = re.findall(r'name="token" value="([^"]+)"', text)
            csrf = await visitor.csrf()

            async def cancel(**form: str) -> tuple[int, str, Any]:
                return await visitor.post("/streams/delayed/cancel?key=s", {"csrf": csrf} | form)

            assert (await cancel(token="xx"))[0] == 400
            assert "Cancelled" in (await cancel(token=token))[1]
            assert "no delayed entry with this token" in (await cancel(token=token))[1]
            assert (await visitor.get("/topics/delayed?name=none"))[0] == 404
            await visitor.post("/logout", {"csrf": csrf})
            await visitor.log_in("bob")
            assert (await visitor.get("/streams/delayed?key=s"))[0] == 403

        visit(tidelog_server, test, audit_file=str(path))
        assert client.tdelay_count("s") == 0
    done, gone = [line for line in audited(path) if line["action"] == "cancel delayed"]
    assert (done["target"], done["result"], done["detail"]) == ("s", "done", {"token": "\\xff token"})
    assert "no delayed entry" in gone["result"]


def test_delayed_entries_of_a_stream_are_paged(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        for n in range(70):
            client.tdelay("s", {"n": n}, ms=10**7 + n)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/streams/delayed?key=s")
        following = re.search(r'rel="next" href="([^"]+)"', text)
        assert following is not None
        _, text, _ = await visitor.get(html.unescape(following[1]))
        assert text.count('name="token"') == 20

    visit(tidelog_server, test)


def lengths(client: Client) -> list[int]:
    return [client.tlen(f"orders:{at}") for at in range(4)]


def test_retention_has_a_preview(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "bob", "~*", "+@all", "-tcfg")
    path = tmp_path / "audit.jsonl"
    orders(tidelog_server.url).sync.send_many(Order(n, f"customer {n}") for n in range(100))
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(100)])
        before = lengths(client)

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            csrf = await visitor.csrf()

            async def post(path: str, **form: str) -> tuple[int, str]:
                status, text, _ = await visitor.post(path, {"csrf": csrf} | form)
                return status, plain(text)

            here = "/streams/retention/preview?key=s"
            status, text = await post(here, count="60", exact="on")
            assert (status, "40 entries will be evicted at once" in text) == (200, True)
            assert client.tlen("s") == 100
            assert "none . No entry" in (await post(here))[1]
            for form in (
                {"count": "x"}, {"age": "soon"}, {"size": "big"}, {"groups": "on"}, {"count": "1", "limit": "5"},
                {"count": "9" * 30},
            ):  # fmt: skip
                assert (await post(here, **form))[0] == 400, form
            form = {"count": "60", "age": "7d", "size": "10MB", "groups": "on", "limit": "90", "exact": "on"}
            assert "10 entries were evicted" in (await post("/streams/retention/set?key=s", **form))[1]
            assert client.tinfo("s").retain == StreamPolicy(60, 7 * 86_400_000, 10 << 20, True, 90, True)
            _, text, _ = await visitor.get("/streams/retention?key=s")
            assert re.findall(r'name="(?:count|age|limit)" value="([^"]*)"', text) == ["60", "7d", "90"]
            assert "policy is set" in (await post("/streams/retention/set?key=s"))[1]
            assert client.tinfo("s").retain is None

            _, text, _ = await visitor.get("/streams/retention?key=orders:1")
            assert "is a partition of the topic" in plain(text)
            assert "The topic retains everything." in plain((await visitor.get("/topics/retention?name=orders"))[1])
            admin.alter(client, "orders", Retention(tier_after="AGE 5"))
            form = {"count": "10", "drop": "on"}
            _, text = await post("/topics/retention/preview?name=orders", **form)
            evicted = 100 - sum(min(each, 10) for each in before)
            assert f"{evicted} entries will be evicted at once, in 4 partitions" in text
            assert lengths(client) == before
            assert (await post("/topics/retention/preview?name=orders", drop="on"))[0] == 400
            _, text = await post("/topics/retention/set?name=orders", **form)
            assert "10 entries per partition; others are dropped" in text
            await until(lambda: max(lengths(client)) == 10)
            kept = admin.settings_of(client, "orders").retention
            assert (kept.partition_size, kept.tier_after) == (10, "AGE 5"), "the form has no field for what stays local"
            assert (await post("/topics/retention/set?name=none"))[0] == 404
            await visitor.post("/logout", {"csrf": csrf})
            await visitor.log_in("bob")
            csrf = await visitor.csrf()
            assert (await post(here, count="1"))[0] == 403
            assert "NOPERM" in (await post("/streams/retention/set?key=s", count="1"))[1]

        visit(tidelog_server, test, audit_file=str(path))
    lines = [line for line in audited(path) if line["action"] == "set retention"]
    assert [line["target"] for line in lines] == ["s", "s", "topic orders", "s"]
    assert lines[0]["detail"]["evicted"] == 10
    assert lines[2]["detail"] == {"retention": "10 entries per partition; others are dropped; local: 5ms"}
    assert lines[3]["result"].startswith("NOPERM")


def test_local_history(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    path = tmp_path / "audit.jsonl"
    orders(tidelog_server.url).sync.send_many(Order(n, "x") for n in range(4))
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(1,)])

        async def test(visitor: Visitor, console: ConsoleServer) -> None:
            await visitor.log_in()
            csrf = await visitor.csrf()

            async def shown(page: str) -> list[str]:
                return re.findall(r'name="local" value="([^"]*)"', (await visitor.get(page))[1])

            async def post(path: str, **form: str) -> int:
                return (await visitor.post(path, {"csrf": csrf} | form))[0]

            for given, tier, text in (
                ("7d", "AGE 604800000", "7d"), ("1GB", f"BYTES {1 << 30}", f"{1 << 30}b"), ("0", "AGE 0", "0ms"),
                ("", None, ""),
            ):  # fmt: skip
                assert await post("/streams/retention/local?key=s", local=given) == 200
                assert client.tinfo("s").tier == tier
                assert await shown("/streams/retention?key=s") == [text]
            assert await post("/streams/retention/local?key=s", local="soon") == 400

            here, topic = "/topics/retention?name=orders", "/topics/retention/set?name=orders"
            assert await shown(here) == [""]
            assert await post(topic, local="12h") == 200
            assert await shown(here) == ["12h"]
            await until(lambda: {client.tinfo(f"orders:{at}").tier for at in range(4)} == {"AGE 43200000"})
            assert await post(topic, local="") == 200
            await until(lambda: {client.tinfo(f"orders:{at}").tier for at in range(4)} == {None})

        visit(tidelog_server, test, audit_file=str(path))
    lines = [line for line in audited(path) if line["action"] == "set local history"]
    assert [line["detail"]["local"] for line in lines] == ["AGE 604800000", f"BYTES {1 << 30}", "AGE 0", "DEFAULT"]


def test_odd_settings_and_values_are_shown(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    odd = f"{EVIL}\x00\u202e"
    names = ["codec", odd, "none", "wide", "list", "json"]
    with tidelog_server.client() as client:

        def write(name: str, **settings: Any) -> None:
            default = {"version": 1, "partitions": 2, "hash": "crc32", "partition_by": None, "codec": "plain"}
            client.redis.set(f"topic:{name}", json.dumps(default | settings))

        write("codec", codec=odd, fields={odd: odd}, partition_by=odd)
        write(odd)
        write("none", partitions=None)
        write("wide", partitions=100_000)
        write("json", codec="json")
        client.tappend("topic:list", {"n": 1})
        client.tappend("codec:0", {odd: odd})
        client.redis.xgroup_create("codec:0", odd, "0")
        for data in ('{"\\ud800": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}', "null", f'{{"a": {"1" * 5000}}}'):
            client.tappend("json:0", {"data": data})
        ids = [found.id for found in client.trange("json:0")]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        pages = ["/topics/topic", "/topics/records", "/topics/delayed", "/topics/retention"]
        paths = [f"{page}?name={quote(name)}" for page in pages for name in names]
        paths += [f"/groups?topic={quote(name)}" for name in names] + ["/topics", "/groups", "/topics?pattern=%ff"]
        paths += [f"/streams/entry?key=json:0&id={at}&view={view}" for at in ids for view in VIEWS]
        paths += [f"/streams/search/events?topic={quote(name)}&words=x" for name in names]
        for path in paths:
            status, text, _ = await visitor.get(path)
            assert status in (200, 400, 404), path
            assert "<script>document" not in text

    visit(tidelog_server, test)


# -- in a browser ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with benched(tmp_path_factory.mktemp("console")) as bench:
        yield bench


@pytest.mark.slow
def test_in_a_browser(bench: ConsoleBench) -> None:
    topic = orders(bench.server.url)
    topic.sync.send_many(Order(n, f"{EVIL} {n % 9}") for n in range(120))
    topic.sync.send(Order(500, "late"), delay=3600)
    with bench.client() as client:
        client.tread("orders:0", "0", 3, group="bill", retry=60_000)

    async def test() -> None:
        page = await bench.log_in()
        await page.press("g")
        await page.press("t")
        await page.until("location.pathname === '/topics' && document.readyState === 'complete'")
        await bench.inspect(
            "/topics", "/topics/topic?name=orders", "/topics/records?name=orders", "/topics/delayed?name=orders",
            "/topics/retention?name=orders", "/streams/retention?key=orders:1",
        )  # fmt: skip
        await page.go(f"{bench.console.url}/topics")
        await page.click("tbody th a")
        await page.click("#records")
        await page.click("#older")
        await page.until("document.querySelector('#newer') !== null && document.readyState === 'complete'")
        await page.click("tbody a")
        await page.until("document.querySelector('#entry').open")
        assert '"paid": false' in await page.run("document.querySelector('#entry pre').textContent")
        await page.press("Escape")
        await page.press("p")  # the previous page
        await page.until("document.querySelector('#newer') === null && document.readyState === 'complete'")
        await page.click("#values")
        await page.until("(document.querySelector('tbody')?.textContent ?? '').includes('3 fields, hidden')")
        await page.click("#values")
        await page.until("(document.querySelector('tbody')?.textContent ?? '').includes('paid')")
        await page.go(f"{bench.console.url}/topics/delayed?name=orders")
        await page.click(".confirm summary")
        await page.click(".confirm button")
        await page.until("document.querySelector('tbody .done')?.textContent === 'Cancelled'")
        await page.go(f"{bench.console.url}/topics/retention?name=orders")
        await page.fill("#count", "20")
        await page.click("[name=drop]")
        await page.press("Enter")
        await page.until("document.querySelector('#retention-result').textContent.includes('will be evicted')")
        await page.click("#retention-result button")
        await page.until("document.querySelector('#retention-result .done') !== null")
        assert await page.run("document.title") == "Retention of orders · tidelog console"

    bench.run(test())
    bench.check()
    with bench.client() as client:
        eventually(lambda: max(lengths(client)) == 20)
