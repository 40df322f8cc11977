"""Streams: paging, positions, summaries, finding keys, copies as code, on tidelog and on redis-server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RedisServer
from tests.tidelog.console.consolekit import PASSWORD, Visitor, add_user, audited, visit
from tidelog.client.entries import Entry, StreamId
from tidelog.console import keynames, payloads
from tidelog.console.application import ConsoleServer
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError
from tidelog.console.streams import BUCKETS, PAGE, StreamReader
from tidelog.testing import Server
from tidelog.transport.access import Access

BASE = 1_700_000_000_000


def read(url: str, test: Callable[[StreamReader], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        connection = UserConnection(Access.of(url), "default", "")
        try:
            await test(await StreamReader.of(connection))
        finally:
            connection.close()

    asyncio.run(main())


async def pages_through(reader: StreamReader, key: bytes, total: int) -> None:
    """From the newest entry to the oldest and back. Each entry is on exactly one page."""
    seen: list[StreamId] = []
    page = await reader.page(key)
    assert not page.newer
    while True:
        seen += [entry.id for entry in page.entries]
        if not page.older:
            break
        page = await reader.page(key, f"({page.entries[-1].id}")
    assert len(seen) == len(set(seen)) == total
    assert seen == sorted(seen, reverse=True)
    back = [entry.id for entry in page.entries]
    while page.newer:
        page = await reader.page(key, after=page.entries[0].id)
        back = [entry.id for entry in page.entries if entry.id not in back] + back
    assert back == seen


def test_paging_on_tidelog(tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.tmappend("s", ["n"], [(n,) for n in range(3 * PAGE + 7)])
        for n in range(3):
            client.tappend("large", {"value": b"x" * 3_000_000, "n": n})
        for n in range(9):
            client.tappend("large", {"value": b"x" * 1_000_000, "n": n})

    async def test(reader: StreamReader) -> None:
        assert reader.tidelog
        await pages_through(reader, b"s", 3 * PAGE + 7)
        page = await reader.page(b"s")
        assert page.first_number == 3 * PAGE + 7
        number = await reader.page(b"s", await reader.position(b"s", "#10"))
        assert number.entries[0]["n"] == b"9"
        assert (await reader.page(b"large")).entries[-1]["n"] == b"4"  # five entries: more would be too much
        times, counts = await reader.density(b"s", page.entries[-1].id.ms - 5000, page.entries[0].id.ms)
        assert len(times) <= BUCKETS
        assert sum(counts) == 3 * PAGE + 7
        with pytest.raises(PageError, match="There is no stream nothing"):
            await reader.info(b"nothing")

    read(tidelog_server.url, test)


def test_paging_on_redis(redis_server: RedisServer) -> None:
    import redis

    with redis.Redis(port=redis_server.port) as client:
        for n in range(2 * PAGE + 3):
            client.xadd("s", {"n": n})
        client.set("text", "x")

    async def test(reader: StreamReader) -> None:
        assert not reader.tidelog
        await pages_through(reader, b"s", 2 * PAGE + 3)
        (row, other) = await reader.summaries([b"s", b"text"], 0)
        assert (row.length, row.groups, row.problem) == (2 * PAGE + 3, 0, "")
        assert other.problem.startswith("WRONGTYPE")
        entry = (await reader.page(b"s")).entries[0]
        assert await reader.entry(b"s", entry.id) == entry
        assert (await reader.neighbors(b"s", entry.id))[0] is None
        assert "-" in reader.id_text(entry.id)
        assert len((await reader.newest_after(b"s", StreamId(0), 10))[0]) == 10

    read(f"redis://127.0.0.1:{redis_server.port}", test)


def test_positions(tidelog_server: Server) -> None:
    async def test(reader: StreamReader) -> None:
        top = 2**64 - 1
        for words, bound in (
            ("1700000000000.5", "1700000000000.5"), ("1700000000000-5", "1700000000000-5"), (" 17 ", f"17.{top}"),
            ("2023-11-14 22:13:20", f"{BASE}.{top}"), ("2023-11-14T23:13:20+01:00", f"{BASE}.{top}"),
            ("#7", "+"),
        ):  # fmt: skip
            assert await reader.position(b"nothing", words) == bound
        for words in ("yesterday", "#x", "1.2.3", "0001-01-01"):
            with pytest.raises(PageError, match="not a position") if words != "0001-01-01" else _nothing():
                assert await reader.position(b"nothing", words) == f"0.{top}"

    read(tidelog_server.url, test)


class _nothing:  # noqa: N801 - used as a function
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_new_entries_are_limited_and_the_others_counted(tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        first = client.tappend("s", {"n": 0})
        client.tmappend("s", ["n"], [(n,) for n in range(1, 51)])

    async def test(reader: StreamReader) -> None:
        entries, skipped = await reader.newest_after(b"s", first, 20)
        assert ([entry["n"] for entry in entries], skipped) == ([b"%d" % n for n in range(50, 30, -1)], 30)
        entries, skipped = await reader.newest_after(b"s", first, 100)
        assert (len(entries), skipped) == (50, 0)
        with tidelog_server.client() as client:
            client.tmappend("s", ["n"], [("x" * 1_000_000,) for _ in range(20)])
        entries, skipped = await reader.newest_after(b"s", first, 100)
        assert (len(entries), skipped) == (5, 65)  # at most about BYTES

    read(tidelog_server.url, test)


# -- finding ---------------------------------------------------------------------------------------------------
def scans(server: Server) -> int:
    with server.client() as client:
        found = client.redis.execute_command("INFO", "commandstats")
        text = found.decode() if isinstance(found, bytes) else str(found)
        counted = re.search(r"cmdstat_scan[^0-9]+calls[^0-9]+(\d+)", text)
        return int(counted[1]) if counted else 0


def test_a_large_keyspace_is_scanned_only_on_demand_and_in_steps(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")
    with tidelog_server.client() as client:
        for start in range(0, 24_000, 4000):
            client.redis.mset({f"text:{n}": "" for n in range(start, start + 4000)})
        for n in range(3):
            client.tappend(f"rare:{n}", {"n": n})
        before = scans(tidelog_server)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/streams")
        assert "This server has 24,00" in text
        assert scans(tidelog_server) == before
        found: list[str] = []
        steps, path = 0, "/streams?pattern=rare"
        while path:
            _, text, _ = await visitor.get(path.replace("&amp;", "&"))
            found += re.findall(r">(rare:\d)<", text)
            steps += 1
            following = re.search(r'hx-get="([^"]+)"', text)
            path = following[1] if following else ""
        assert sorted(found) == ["rare:0", "rare:1", "rare:2"]
        assert steps == 3
        assert "That is all. 24,00" in text

    visit(tidelog_server, test)


def test_small_servers_are_listed_and_names_are_in_order(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann", "+@all", "~s:*")
    odd = b"<i>\xff&\n"
    with tidelog_server.client() as client:
        for name in (*(b"s:%d" % n for n in (1, 2, 10)), odd):
            client.tappend(name, {"n": 1})

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, text, _ = await visitor.get("/streams")
        assert re.findall(r">(s:\d+)<", text) == ["s:1", "s:2", "s:10"]
        assert "&lt;i&gt;\\xff&amp;" in text
        assert "NOPERM No permissions to access a key" in text
        status, text, _ = await visitor.get(f"/streams/stream?key={keynames.in_url(odd)}")
        assert status == 403
        status, text, _ = await visitor.get("/streams/stream?key=s%3A1")
        assert status == 200
        assert (await visitor.get("/streams/stream?keyhex=" + b"s:1".hex()))[0] == 200
        for path in ("/streams/stream", "/streams/stream?key=s:1&before=x", "/streams/entry?key=s:1&id=x"):
            assert (await visitor.get(path))[0] == 400
        assert (await visitor.get("/streams/entry?key=s:1&id=1.1"))[0] == 404

    visit(tidelog_server, test)


def test_patterns() -> None:
    assert keynames.pattern_of(b"") == b"*"
    assert keynames.pattern_of(b"ord") == b"*ord*"
    assert keynames.pattern_of(b"ord?rs:*") == b"ord?rs:*"
    assert keynames.pattern_of(b"a\\b") == b"*a\\\\b*"


# -- entries -----------------------------------------------------------------------------------------------------
ODD = Entry(
    StreamId(5, 1), [b"a b", b"it's $HOME `x` \"y\" \\", b"bin", bytes(range(256)), b"text", "Müller\n2".encode()]
)  # fmt: skip
PLAIN = Entry(StreamId(5, 1), [b"city", b"Oslo", b"note", b"it's; $HOME `x`", b"", "Tromsø".encode()])


def test_values_as_text_json_and_hex() -> None:
    assert payloads.clipped(b"a\nb\x1b[0m\xff") == "a⏎b\\u001b[0m\\xff"
    assert payloads.clipped(b"x" * 1000).endswith("x…")
    assert payloads.long(b"x" * 70_000).endswith("4,464 of 70,000 bytes are not shown")
    nested = json.loads(payloads.as_json(Entry(StreamId(1, 2), [b"a", b'{"b":[1]}', b"c", b"\xff", b"d", b"7"])))
    assert nested == {"id": "1.2", "fields": {"a": {"b": [1]}, "c": {"hex": "ff"}, "d": "7"}}
    deep = b"[" * 20_000 + b"]" * 20_000
    assert "[[[[" in payloads.as_json(Entry(StreamId(1, 2), [b"a", deep]))
    twice = json.loads(payloads.as_json(Entry(StreamId(1, 2), [b"a", b"1", b"a", b"2"])))
    assert twice["fields"] == [["a", "1"], ["a", "2"]]
    assert payloads.as_hex(b"Oslo\x00" * 4).splitlines() == [
        "00000000  4f 73 6c 6f 00 4f 73 6c 6f 00 4f 73 6c 6f 00 4f  Oslo.Oslo.Oslo.O",
        "00000010  73 6c 6f 00                                      slo.",
    ]


@pytest.mark.parametrize("entry", [PLAIN, ODD], ids=["plain", "odd"])
def test_the_code_appends_the_same_entry(tidelog_server: Server, entry: Entry, tmp_path: Path) -> None:
    key = b"it's \xff" if entry is ODD else b"s"
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli here (Debian: apt-get install redis-tools)")
    shell = payloads.redis_cli(f"-p {tidelog_server.port}", [b"TAPPEND", key, *entry.flat])
    assert ("<<" in shell) == (entry is ODD)
    subprocess.run(["sh", "-c", shell], check=True, capture_output=True)
    program = payloads.python(tidelog_server.url, key, entry, tidelog=True)
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    subprocess.run(
        [sys.executable, "-c", payloads.python(tidelog_server.url, key, entry, tidelog=False)], check=True,
        capture_output=True,
    )  # fmt: skip
    with tidelog_server.client() as client:
        assert [found.flat for found in client.trange(key)] == [entry.flat] * 3


def test_appending_is_audited_and_permitted_by_the_acl(tidelog_server: Server, tmp_path: Path) -> None:
    add_user(tidelog_server, "ann")
    add_user(tidelog_server, "reader", "~*", "+@connection", "+@read")
    path = tmp_path / "audit.jsonl"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        for user in ("ann", "reader"):
            await visitor.log_in(user, PASSWORD)
            token = await visitor.csrf()
            form = {"csrf": token, "field": "city", "value": "Bergen\r\n2"}
            status, text, _ = await visitor.post("/streams/append?key=s", form)
            assert status == 200
            assert ("Appended as" in text) == (user == "ann")
            assert ("NOPERM" in text) == (user == "reader")
            assert (await visitor.post("/streams/append?key=s", {"csrf": token}))[0] == 400
            assert (await visitor.post("/streams/append?key=s", form | {"csrf": ""}))[0] == 403
            await visitor.post("/logout", {"csrf": token})

    visit(tidelog_server, test, audit_file=str(path))
    with tidelog_server.client() as client:
        (entry,) = client.trange("s")
        assert entry.pairs == [(b"city", b"Bergen\n2")]
    done, refused = [line for line in audited(path) if line["action"] == "append"]
    assert (done["user"], done["target"], done["result"]) == ("ann", "s", "done")
    assert done["detail"] == {"fields": 1, "id": str(entry.id)}
    assert refused["result"].startswith("NOPERM")
    assert "Bergen" not in path.read_text()
