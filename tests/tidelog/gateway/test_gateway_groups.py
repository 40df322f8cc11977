"""Readers of groups, delayed entries, and the retention policy."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.tidelog.gateway.gatewaykit import Caller, Events, add_user, visit
from tests.waiting import until
from tidelog.gateway import groups
from tidelog.gateway.application import GatewayServer
from tidelog.gateway.users import NAME
from tidelog.testing import Server

S = "/v1/streams/jobs"
G = f"{S}?group=workers"


def ids_of(page: dict[str, Any]) -> list[str]:
    return [each["id"] for each in page["entries"]]


def test_pages_of_a_group(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ids = await caller.append("jobs", *({"n": n} for n in range(5)))
        given_up = "maxdeliveries=2&deadletter=dead"
        _, first, _ = await caller.get(f"{G}&limit=2&retry=1h&{given_up}")
        _, second, _ = await caller.get(f"{G}&limit=3&retry=1h", Accept="application/x-ndjson")
        assert (ids_of(first), second.count(b"\n")) == (ids[:2], 3)
        _, found, _ = await caller.post(f"{S}/groups/workers/ack", {"ids": [*ids[2:], ids[0], ids[0]]})
        assert found == {"acknowledged": 4}
        _, found, _ = await caller.post(f"{S}/groups/workers/nack?delay=20ms", {"ids": ids[1:2]})
        _, found, _ = await caller.get(f"{G}&wait=20s&{given_up}")  # it is delivered again
        assert ids_of(found) == ids[1:2]
        _, found, _ = await caller.post(f"{S}/groups/workers/nack", {"ids": ids[1:2]})
        assert found == {"returned": 1}

        async def dead_letters() -> Any:
            assert (await caller.get(f"{G}&{given_up}"))[1]["entries"] == []
            return (await caller.get("/v1/streams/dead"))[1]["entries"]

        (dead,) = await until(dead_letters)
        assert dead["fields"]["__reason"] == "maxdeliveries"
        _, found, _ = await caller.get(f"{S}/groups")
        assert found == {"groups": [{"group": "workers", "offset": ids[4], "pending": 0, "readers": 0}]}
        waiting = asyncio.create_task(caller.get(f"{G}&wait=20s"))
        await until(lambda: gateway.site.group_readers.used)
        ids = await caller.append("jobs", {"n": 5})
        assert ids_of((await waiting)[1]) == ids
        _, found, _ = await caller.get(f"{S}?group=late&after=latest")
        assert found == {"entries": []}

    visit(tidelog_server, test)


def test_readers_of_a_group_share_its_entries(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, f"{G}&limit=1").open() as first, Events(caller, f"{G}&limit=1").open() as second:
            with tidelog_server.client() as client:

                def waiting() -> int:
                    return sum(each["name"] == NAME and "b" in each["flags"] for each in client.redis.client_list())

                await until(lambda: waiting() == 2)
                ids = await caller.append("jobs", {"n": 0})
                ids += await caller.append("jobs", {"n": 1})
                (one,), (other,) = await first.take(1), await second.take(1)
                assert [one.id, other.id] == ids
            assert one.data["fields"] == {"n": "0"}
        await until(lambda: not gateway.site.group_readers.used)
        with tidelog_server.client() as client:
            await until(lambda: waiting() == 0)
        _, found, _ = await caller.post(f"{S}/groups/workers/ack", {"ids": ids})
        assert found == {"acknowledged": 2}

    visit(tidelog_server, test)


def test_a_reader_that_disconnects_loses_nothing(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        ids = await caller.append("jobs", *({"n": n} for n in range(200)))
        found: set[str] = set()
        while len(found) < len(ids):
            async with Events(caller, f"{G}&limit=20&retry=20ms").open() as reader:
                taken = [each.id for each in await reader.take(15)]
            await caller.post(f"{S}/groups/workers/ack", {"ids": taken})
            found.update(taken)
        assert found == set(ids)

    visit(tidelog_server, test)


def test_a_killed_server_and_a_deleted_group(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller, G).open() as reader:
            tidelog_server.kill()
            await asyncio.to_thread(tidelog_server.start)
            ids = await caller.append("jobs", {"n": 1}, Idempotency_Key="k")
            assert [each.id for each in await reader.take(1)] == ids
            with tidelog_server.client() as client:
                client.tgroup_destroy("jobs", "workers")
            (problem,) = await reader.take(1)
            assert (problem.name, problem.data["status"], problem.data["code"]) == ("problem", 404, "NOGROUP")
        async with Events(caller, G).open() as reader:
            await reader.take(1)  # the entry of before
            stopping = asyncio.create_task(gateway.stop())
            assert await reader.take(1) == []
            await stopping

    visit(tidelog_server, test)


def test_limits_and_rights_of_groups(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ENTRIES", 2)
    add_user(tidelog_server, "ann", "%R~jobs", "+@connection", "+tread")

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        gateway.site.group_readers._each = 1
        async with Events(caller, G).open():
            assert (await caller.get(G, Accept="text/event-stream"))[0] == 429
            assert (await caller.get(G))[0] == 200
        for accept in ("application/json", "text/event-stream"):
            assert (await caller.as_user("ann").get(G, Accept=accept))[0] == 403
        for path, body, status in (
            ("ack", {"ids": []}, 422), ("ack", {"ids": ["1.0"] * 3}, 422), ("ack", {"ids": ["x"]}, 422),
            ("ack", {}, 422), ("ack", [], 422), ("nack", {"ids": ["1.0"]}, 200), ("ack", {"ids": ["1.0"]}, 200),
            ("nack?delay=x", {"ids": ["1.0"]}, 400), ("ack", b"x" * 200_000, 415),
        ):  # fmt: skip
            assert (await caller.post(f"{S}/groups/nobody/{path}", body))[0] == status, (path, body)
        big = await caller.call("POST", f"{S}/groups/g/ack", b"x" * 200_000, Content_Type="application/json")
        assert big[0] == 413
        assert (await caller.get(f"{S}?retry=5s"))[1]["detail"] == "The parameter retry requires group=NAME."
        assert (await caller.get(f"{S}?group="))[0] == 400

    visit(tidelog_server, test)


def test_delayed_entries(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        status, found, _ = await caller.post(f"{S}?delay=20ms", {"fields": {"n": 1}})
        assert (status, len(found["tokens"])) == (202, 1)
        _, found, _ = await caller.get(f"{S}?wait=20s")
        assert [each["fields"] for each in found["entries"]] == [{"n": "1"}]
        entries = [{"fields": {"id": n}} for n in range(2)]  # ID is also an option of TDELAY
        for _ in range(2):
            status, found, _ = await caller.post(f"{S}?at=2100-01-31T12:00:00Z", entries, Idempotency_Key="k")
            assert (status, found) == (202, {"tokens": ["k/0", "k/1"]})
        assert (await caller.post(f"{S}?delay=1d", entries[0]))[0] == 202
        _, page, _ = await caller.get(f"{S}/delayed?limit=2")
        token = page["entries"][0]["token"]
        assert page["entries"][1] == {"token": "k/0", "at": "2100-01-31T12:00:00.000Z", "fields": {"id": "0"}}
        _, page, _ = await caller.get(f"{S}/delayed?cursor={page['cursor']}")
        assert ([each["token"] for each in page["entries"]], page["cursor"]) == (["k/1"], None)
        for each in (token, "k%2F0"):
            assert (await caller.call("DELETE", f"{S}/delayed/{each}"))[0] == 204
            status, found, _ = await caller.call("DELETE", f"{S}/delayed/{each}")
            assert (status, found["code"]) == (404, "no-such-token")
        for query in (
            "delay=1s&at=2100-01-31T12:00:00Z", "delay=1s&maxcount=5", "at=2100-01-31", "delay=-1s",
            "at=0001-01-01T00:00:00%2B14:00",
        ):  # fmt: skip
            assert (await caller.post(f"{S}?{query}", entries[0]))[0] == 400, query
        status, found, _ = await caller.get(f"{S}/delayed?cursor=x")
        assert status == 400

    visit(tidelog_server, test)


def test_retention(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        path = f"{S}/retention"
        assert (await caller.get(path))[0] == 404
        await caller.append("jobs", *({"n": n} for n in range(5)))
        assert (await caller.get(path))[1]["code"] == "no-retention"
        policy = {"maxcount": 2, "maxage": "7d", "maxbytes": "1MB", "exact": True}
        status, found, _ = await caller.call("PUT", f"{path}?dry=true", policy)
        assert (status, found) == (200, {"evicted": 3})
        assert (await caller.get(path))[0] == 404
        _, found, _ = await caller.call("PUT", path, policy)
        assert found == {"evicted": 3}
        _, found, _ = await caller.get(path)
        assert found == {
            "maxcount": 2, "maxage": 604800.0, "maxbytes": 1 << 20, "groups": False, "limit": None, "exact": True
        }  # fmt: skip
        assert (await caller.call("PUT", path, found))[0] == 200
        assert (await caller.call("DELETE", path))[0] == 204
        for body, status in (
            ({}, 422), ({"maxcount": -1}, 422), ({"maxage": "x"}, 422), ({"count": 1}, 422), (b"{", 415),
            ({"maxcount": 1, "limit": 5}, 422),
        ):  # fmt: skip
            assert (await caller.call("PUT", path, body))[0] == status, body
        add_user(tidelog_server, "ann", "%R~jobs", "+@connection", "+tcfg")
        assert (await caller.as_user("ann").call("PUT", path, policy))[0] == 403

    visit(tidelog_server, test)


def test_local_history(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        path = f"{S}/local-history"
        assert (await caller.get(path))[0] == 404
        await caller.append("jobs", {"n": 1})
        assert (await caller.get(path))[1]["code"] == "no-local-history"
        for body, expected in (
            ({"age": "7d"}, {"age": 604800.0}), ({"bytes": "1MB"}, {"bytes": 1 << 20}), ({"age": 0}, {"age": 0.0}),
            ({"bytes": 0}, {"bytes": 0}),
        ):  # fmt: skip
            assert (await caller.call("PUT", path, body))[0] == 204
            status, found, _ = await caller.get(path)
            assert (status, found) == (200, expected)
            assert (await caller.call("PUT", path, found))[0] == 204
        for body, status in (
            ({}, 422), ({"age": 1, "bytes": 1}, 422), ({"age": "x"}, 422), ({"bytes": -1}, 422), ({"count": 1}, 422),
            ({"bytes": 1 << 80}, 422),
        ):  # fmt: skip
            assert (await caller.call("PUT", path, body))[0] == status, body
        assert (await caller.get(path))[1] == {"bytes": 0}
        add_user(tidelog_server, "ann", "%R~jobs", "+@connection", "+tcfg")
        assert (await caller.as_user("ann").get(path))[0] == 200
        assert (await caller.as_user("ann").call("PUT", path, {"age": 1}))[0] == 403
        assert (await caller.call("DELETE", path))[0] == 204
        assert (await caller.get(path))[0] == 404

    visit(tidelog_server, test)


def test_a_changed_password_ends_readers_of_groups(tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tidelog_server, "ann")
    monkeypatch.setattr(groups, "VERIFIED", 0.0)
    monkeypatch.setattr(groups, "QUIET", 0.1)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        async with Events(caller.as_user("ann"), G).open() as reader:
            with tidelog_server.client() as client:
                client.redis.execute_command("ACL", "SETUSER", "ann", "resetpass", ">another")
            (problem,) = await reader.take(1)
            assert (problem.name, problem.data["status"]) == ("problem", 401)

    visit(tidelog_server, test)


def test_a_client_that_disconnects_while_it_waits_receives_nothing(tidelog_server: Server) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        place = urlsplit(caller.url)
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(f"GET {G}&wait=60s&retry=1h HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: gateway.site.group_readers.used)
        writer.close()
        await until(lambda: not gateway.site.group_readers.used)
        ids = await caller.append("jobs", {"n": 1})
        _, found, _ = await caller.get(G)
        assert ids_of(found) == ids

    visit(tidelog_server, test)
