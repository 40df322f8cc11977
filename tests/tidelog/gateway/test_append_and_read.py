"""Appending entries, and reading them as pages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.tidelog.gateway.gatewaykit import Caller, add_user, visit
from tidelog.gateway.application import GatewayServer
from tidelog.testing import Server

S = "/v1/streams/orders"


def test_pages(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        status, found, headers = await caller.get(S)
        assert (status, found) == (200, {"entries": [], "next": "0.0", "more": False})
        assert "Tidelog-First-Id" not in headers
        ids = await caller.append("orders", *({"n": str(n)} for n in range(5)))
        status, found, headers = await caller.get(f"{S}?limit=2")
        assert [each["id"] for each in found["entries"]] == ids[:2]
        assert found["entries"][0]["fields"] == {"n": "0"}
        assert (found["next"], found["more"], headers["Tidelog-Last-Id"]) == (ids[1], True, ids[4])
        following = headers["Link"].partition("<")[2].partition(">")[0]
        assert headers["Link"].endswith('; rel="next"')
        _, found, headers = await caller.get(following)
        assert [each["id"] for each in found["entries"]] == ids[2:4]
        _, found, headers = await caller.get(f"{S}?after={ids[3]}")
        assert ([each["id"] for each in found["entries"]], found["more"], "Link" in headers) == (ids[4:], False, False)
        _, found, _ = await caller.get(f"{S}?after=latest")
        assert (found["entries"], found["next"]) == ([], ids[4])
        ms = int(ids[0].partition(".")[0])
        for after, expected in ((f"{ms - 1}", 5), ("2020-01-31T12:00:00Z", 5), ("2120-01-31T12:00:00%2B01:00", 0)):
            assert len((await caller.get(f"{S}?after={after}"))[1]["entries"]) == expected, after
        status, text, headers = await caller.get(f"{S}?limit=3", Accept="application/x-ndjson")
        assert headers["Content-Type"] == "application/x-ndjson"
        assert [json.loads(line)["id"] for line in text.splitlines()] == ids[:3]
        status, text, headers = await caller.call("HEAD", S)
        assert (status, text) == (200, b"")
        found = [headers[f"Tidelog-{name}"] for name in ("First-Id", "Last-Id", "Length")]
        assert found == [ids[0], ids[4], "5"]

    visit(tidelog_server, test)


def test_values(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        entries: list[Any] = [
            {"fields": {"text": "a\n\"☃\x00", "empty": "", "bytes": {"base64": "/wA="}}},
            {"fields": [["tag", "new"], ["tag", "red"]]},
            {"fields": [[{"base64": "/w=="}, "x"]]},
        ]
        status, _, _ = await caller.post(S, entries)
        assert status == 201
        _, found, _ = await caller.get(S)
        assert [{"fields": each["fields"]} for each in found["entries"]] == entries
        body = b'{"fields": {"price": 1.10, "large": 12345678901234567890123, "e": -1E5}}\n\n' * 2
        status, found, _ = await caller.call("POST", S, body, Content_Type="application/x-ndjson; charset=utf-8")
        assert (status, len(found["ids"])) == (201, 2)
        _, found, _ = await caller.get(f"{S}?after={found['ids'][0]}")
        assert found["entries"][0]["fields"] == {"price": "1.10", "large": "12345678901234567890123", "e": "-1E5"}

    visit(tidelog_server, test)
    with tidelog_server.client() as client:
        assert client.trange("orders")[0]["bytes"] == b"\xff\x00"


def test_keys_are_any_bytes(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        for path in ("a%2Fb%20c", "%FF%00", "%C3%A9", "a+b", "%25"):
            status, found, _ = await caller.post(f"/v1/streams/{path}", {"fields": {"path": path}})
            assert status == 201, found
            assert (await caller.get(f"/v1/streams/{path}"))[1]["entries"][0]["fields"] == {"path": path}
        assert (await caller.get("/v1/streams/"))[0] == 404

    visit(tidelog_server, test)
    with tidelog_server.client() as client:
        assert sorted(client.redis.keys()) == [b"%", b"a+b", b"a/b c", "é".encode(), b"\xff\x00"]


def test_a_repeated_request_appends_once(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        many = [{"fields": {"n": n}} for n in range(250)]  # more than the server's default of IDs for each producer
        for entries in ({"fields": {"n": "1"}}, many):
            key = f"k{len(entries)}"
            status, first, headers = await caller.post(S, entries, Idempotency_Key=key)
            assert (status, "Idempotency-Replayed" in headers) == (201, False), first
            status, second, headers = await caller.post(S, entries, Idempotency_Key=key)
            assert (status, second, headers["Idempotency-Replayed"]) == (200, first, "true")
        status, found, _ = await caller.post(S, {"fields": {"n": "2"}}, Idempotency_Key="k1")
        assert (status, found["code"]) == (422, "key-reused")
        assert (await caller.call("HEAD", S))[2]["Tidelog-Length"] == "251"
        for key in ("", "x" * 201, "é"):
            assert (await caller.post(S, {"fields": {"n": "2"}}, Idempotency_Key=key))[0] == 400
        add_user(tidelog_server, "writer", "~orders", "+@connection", "+xadd")
        writer = caller.as_user("writer")
        first = await writer.append("orders", {"a": "b"}, Idempotency_Key="w")
        assert await writer.append("orders", {"a": "b"}, Idempotency_Key="w") == first

    visit(tidelog_server, test)


def test_a_repetition_with_more_entries_appends_nothing(tidelog_server: Server) -> None:
    entries = [{"fields": {"n": n}} for n in range(4)]

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        assert (await caller.post(S, entries[:2], Idempotency_Key="k"))[0] == 201
        for others in (entries, entries[:1], [entries[1], *entries], entries[1:3]):
            status, found, _ = await caller.post(S, others, Idempotency_Key="k")
            assert (status, found["code"]) == (422, "key-reused"), others
        assert (await caller.post(S, entries[:2], Idempotency_Key="k"))[0] == 200
        assert (await caller.call("HEAD", S))[2]["Tidelog-Length"] == "2"
        with tidelog_server.client() as client:
            client.redis.set("text", "x")
        text = "/v1/streams/text"
        assert (await caller.post(text, entries[:2], Idempotency_Key="k"))[0] == 409
        with tidelog_server.client() as client:
            client.redis.delete("text")
        assert (await caller.post(text, entries[:3], Idempotency_Key="k"))[0] == 201  # the first had no effect

    async def other(caller: Caller, gateway: GatewayServer) -> None:
        status, found, _ = await caller.post(S, entries, Idempotency_Key="k")
        assert (status, found["code"]) == (422, "key-reused")
        assert "request with 2 entries" in found["detail"]

    visit(tidelog_server, test)
    visit(tidelog_server, other)


def test_simultaneous_and_later_repetitions_append_once(tidelog_server: Server) -> None:
    """Also through another gateway, and after the server was killed."""
    entries = [{"fields": {"n": n}} for n in range(3)]
    found: set[str] = set()

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        answers = await asyncio.gather(*(caller.post(S, entries, Idempotency_Key="k") for _ in range(20)))
        found.update(str(each[1]) for each in answers)

    visit(tidelog_server, test)
    tidelog_server.kill()
    tidelog_server.start()
    visit(tidelog_server, test)
    assert len(found) == 1
    assert "ids" in found.pop()
    with tidelog_server.client() as client:
        assert client.tlen("orders") == 3


def test_eviction_after_an_append(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        await caller.append("orders", *({"n": n} for n in range(10)))
        status, _, _ = await caller.post(f"{S}?maxcount=3&maxage=1h", {"fields": {"n": 10}}, Idempotency_Key="x")
        assert status == 201
        _, found, _ = await caller.get(S)
        assert [each["fields"]["n"] for each in found["entries"]] == ["8", "9", "10"]
        await caller.post(f"{S}?maxbytes=0", {"fields": {"n": 11}})
        assert (await caller.call("HEAD", S))[2]["Tidelog-Length"] == "0"
        for query, length in (("maxcount=2", 2), ("maxcount=1&maxage=1h&maxbytes=1MB", 1), ("maxbytes=0", 0)):
            status, found, _ = await caller.post(f"{S}?{query}", [{"fields": {"n": n}} for n in range(3)])
            assert (status, len(found.get("ids", ()))) == (201, 3), found
            assert (await caller.call("HEAD", S))[2]["Tidelog-Length"] == str(length)
        _, found, _ = await caller.get(f"{S}?after=1.0")
        assert found["missing"] is True
        _, text, _ = await caller.get(f"{S}?after=1.0", Accept="application/x-ndjson")
        assert text == b'{"missing":true}\n'

    visit(tidelog_server, test)


def test_all_entries_or_none(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        wide = {f"f{n}": "" for n in range(32_769)}
        status, found, _ = await caller.post(S, [{"fields": {"a": "b"}}, {"fields": wide}])
        assert (status, "32768 fields in total" in found["detail"]) == (413, True)
        status, found, _ = await caller.post(f"{S}?maxage=300000d", [{"fields": {"a": "b"}}] * 2)
        assert status == 400
        add_user(tidelog_server, "ann", "~orders", "+@connection", "+@transaction", "+tappend", "+tread", "+tlen")
        status, found, _ = await caller.as_user("ann").post(f"{S}?maxcount=1", [{"fields": {"a": "b"}}] * 2)
        assert (status, found["code"], "tappev" in found["detail"]) == (403, "NOPERM", True)
        assert (await caller.call("HEAD", S))[2]["Tidelog-Length"] == "0"

    visit(tidelog_server, test)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"nope", 400, "JSON is malformed"),
        (b"\xff", 400, "JSON is malformed"),
        (b"", 400, "truncated"),
        (b'{"fields":' + b"[" * 100_000, 400, "nested too deeply"),
        (b"[]", 422, "no entry"),
        (b'{"fields": {}}', 422, "at least one field"),
        (b'{"fields": {"a": null}}', 422, "not null"),
        (b'{"fields": {"a": {"b": 1}}}', 422, "send nested JSON as a string"),
        (b'{"fields": {"a": {"base64": "!"}}}', 422, "base64"),
        (b'{"fields": [["a"]]}', 422, "length 2"),
        (b'{"id": "1.0", "fields": {"a": "b"}}', 422, "unknown field `id`"),
        (b'{"fields": {"a": "\xff"}}', 400, "utf-8"),
        (b'[{"fields": {"a": 1}}, {"a": 1}]', 422, "$[1]"),
        (b"[" + b'{"fields":{"a":1}},' * 1000 + b'{"fields":{"a":1}}]', 413, "1000: send several"),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(gateway: Any, body: bytes, status: int, text: str) -> None:
    answer, found, headers = gateway("POST", S, body, Content_Type="application/json")
    assert (answer, found["status"], headers["Content-Type"]) == (status, status, "application/problem+json"), found
    assert text in found["detail"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("afer=1", "did you mean 'after'?"),
        ("after=nope", "after: must be earliest, latest, an ID"),
        ("after=2020-01-31T12:00:00", "with its zone"),
        ("limit=0", "limit: must be a number from 1 to 10000: '0'"),
        ("limit=" + "9" * 5000, "limit: must be a number"),
        ("limit=%C2%B2", "limit: must be a number"),
        ("limit=1&limit=2", "given twice"),
        ("after=%FF", "after: must be"),
        ("after=0001-01-01T00:00:00%2B14:00", "after: must be"),
        ("wait=" + "9" * 400, "wait: "),
        ("wait=.", "wait: "),
    ],
)
def test_parameters_that_are_refused(gateway: Any, query: str, text: str) -> None:
    status, found, _ = gateway("GET", f"{S}?{query}")
    assert (status, found["code"]) == (400, "invalid-parameter")
    assert text in found["detail"]


def test_media_types(gateway: Any) -> None:
    for accept, status in (
        ("text/csv", 406), ("text/html, */*;q=0.1", 200), ("application/*", 200), ("", 200), ("*/*;q=x", 406),
    ):  # fmt: skip
        assert gateway("GET", S, Accept=accept)[0] == status, accept
    for given in ("text/plain", "", "application/json5"):
        assert gateway("POST", S, b'{"fields": {"a": 1}}', Content_Type=given)[0] == 415, given
    status, _, headers = gateway("DELETE", S)
    assert (status, headers["Allow"]) == (405, "GET, HEAD, POST")
    assert gateway("GET", "/v2")[0] == 404
    assert gateway("GET", "/v1/streams/" + "x" * 4097)[0] == 400


def test_many_requests_at_the_same_time(tidelog_server: Server) -> None:
    """They wait for connections and memory. None of them is refused."""

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        posted = await asyncio.gather(*(caller.post(S, {"fields": {"x": "x" * 10_000}}) for _ in range(100)))
        read = await asyncio.gather(*(caller.get(f"{S}?limit=50") for _ in range(150)))
        assert {each[0] for each in posted} == {201}
        assert {(each[0], len(each[1]["entries"])) for each in read} == {(200, 50)}
        assert gateway.site.memory.used == 0

    visit(tidelog_server, test)


def test_bodies_and_pages_that_threads_convert(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        entries = [{"fields": {f"f{n}": "x" * 20 for n in range(32)}} for _ in range(1000)]
        status, found, _ = await caller.post(S, entries)
        assert (status, len(found["ids"])) == (201, 1000)
        status, found, _ = await caller.get(f"{S}?limit=10000")
        number = len(found["entries"])  # a page ends after 1 MiB
        assert [{"fields": each["fields"]} for each in found["entries"]] == entries[:number]
        assert (number > 500, found["more"]) == (True, True)

    visit(tidelog_server, test)
