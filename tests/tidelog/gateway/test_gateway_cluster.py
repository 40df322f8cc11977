"""A gateway over two server groups: requests for the streams of both, moves of slots, a leader that fails, rights."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.gateway.gatewaykit import ALL, PASSWORD, Caller, Events, visit
from tidelog.gateway.application import GatewayServer
from tidelog.transport.slots import slot_of

A, B = keys_of_both(8)  # of the lower and the upper half of the slots
HALF = 8192


def add_users(groups: Groups, name: str, *rules: str) -> None:
    for node in groups.nodes:
        assert node.say("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *(rules or ALL)) == b"OK"


def owner_of(groups: Groups, key: str) -> tuple[str, str]:
    """The group that has a key, and the other group."""
    owner = groups.owner(key)
    return owner, "2" if owner == "1" else "1"


async def append(caller: Caller, key: str, start: int, end: int) -> None:
    """Append numbers, each with a request that can be repeated."""
    for number in range(start, end):
        await caller.append(key, {"n": number}, Idempotency_Key=f"{key}-{number}")


def numbers(entries: list[Any]) -> list[int]:
    return [int(each["fields"]["n"]) for each in entries]


def test_requests_for_streams_of_both_groups(groups: Groups) -> None:
    async def test(caller: Caller, gateway: GatewayServer) -> None:
        for key in (A[0], B[0]):
            stream = f"/v1/streams/{key}"
            for repeated in (False, True):
                assert len(await caller.append(key, {"n": 1}, {"n": 2}, Idempotency_Key="once")) == 2, repeated
            assert len(await caller.append(f"{key}?maxcount=3", {"n": 3}, {"n": 4})) == 2
            _, found, _ = await caller.get(stream)
            assert numbers(found["entries"])[-2:] == [3, 4]
            status, _, headers = await caller.call("HEAD", stream)
            assert (status, headers["Tidelog-Last-Id"]) == (200, found["entries"][-1]["id"])
            status, found, _ = await caller.get(f"{stream}?group=g&limit=1")
            assert status == 200
            taken = [each["id"] for each in found["entries"]]
            assert (await caller.post(f"{stream}/groups/g/ack", {"ids": taken}))[1] == {"acknowledged": 1}
            assert (await caller.get(f"{stream}/groups"))[1]["groups"][0]["group"] == "g"
            assert (await caller.post(f"{stream}?delay=1h", {"fields": {"n": 9}}))[0] == 202
            assert len((await caller.get(f"{stream}/delayed"))[1]["entries"]) == 1
            assert (await caller.call("PUT", f"{stream}/retention", {"maxcount": 100}))[0] == 200
            assert (await caller.get(f"{stream}/retention"))[1]["maxcount"] == 100
        status, problem, _ = await caller.get(f"/v1/streams/{A[0]}?group=h&maxdeliveries=1&deadletter={B[0]}")
        assert (status, problem["code"]) == (400, "CROSSSLOT")

    visit(groups.url(), test)


def test_readers_while_slots_move(groups: Groups) -> None:
    """Event streams, a page that waits, and a reader of a group receive each entry once, in order."""

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        keys = [A[1], B[1]]
        readers = [Events(caller, f"/v1/streams/{key}?after=earliest") for key in keys]
        shared = Events(caller, f"/v1/streams/{keys[0]}?group=readers&retry=10m")
        async with readers[0].open(), readers[1].open(), shared.open():
            for round_ in range(3):
                following = [asyncio.create_task(each.take(10)) for each in (*readers, shared)]
                last = (await caller.call("HEAD", f"/v1/streams/{keys[1]}"))[2]["Tidelog-Last-Id"]
                page = asyncio.create_task(caller.get(f"/v1/streams/{keys[1]}?after={last}&wait=60s"))
                await asyncio.gather(*(append(caller, key, round_ * 10, round_ * 10 + 5) for key in keys))
                for key in keys:  # the slot moves while the readers wait for entries
                    owner, other = owner_of(groups, key)
                    await asyncio.to_thread(groups.move, str(slot_of(key)), to=other, at=owner)
                await asyncio.gather(*(append(caller, key, round_ * 10 + 5, round_ * 10 + 10) for key in keys))
                for found in await asyncio.gather(*following):
                    assert numbers([each.data for each in found]) == [*range(round_ * 10, round_ * 10 + 10)]
                assert numbers((await page)[1]["entries"])[0] == round_ * 10

    visit(groups.url(), test)


def test_rights_in_a_cluster(groups: Groups) -> None:
    add_users(groups, "reader", "~*", "+@connection", "+role", "+tread", "+tappend", "+cluster|slots")
    add_users(groups, "narrow", "~*", "+@connection", "+role", "+tread", "+tappend")
    add_users(groups, "moved")

    async def narrow(caller: Caller, gateway: GatewayServer) -> None:
        """Nobody has read the map yet."""
        found = [await caller.as_user("narrow").get(f"/v1/streams/{key}") for key in (A[2], B[2])]
        found.sort(key=lambda answer: answer[0])
        assert [status for status, _, _ in found] == [200, 403]  # the group that was found first, and the other one
        assert found[1][1]["code"] == "NOPERM"
        assert "+cluster|slots" in found[1][1]["detail"]

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        reader = caller.as_user("reader")
        for key in (A[2], B[2]):
            await reader.append(key, {"n": 1})
            assert (await reader.get(f"/v1/streams/{key}"))[0] == 200
            assert (await reader.call("DELETE", f"/v1/streams/{key}/retention"))[0] == 403
        # the map is known, so that a login sends nothing on its own
        for name in ("reader", "nobody"):
            status, problem, _ = await caller.as_user(name, "wrong").get(f"/v1/streams/{B[2]}")
            assert (status, problem["code"]) == (401, "WRONGPASS")
        moved = caller.as_user("moved")
        assert [(await moved.get(f"/v1/streams/{key}"))[0] for key in (A[2], B[2])] == [200, 200]
        for node in groups.nodes:
            node.say("ACL", "SETUSER", "moved", "resetpass", ">another")
            assert node.say("CLIENT", "KILL", "USER", "moved") == 1
        assert [(await moved.get(f"/v1/streams/{key}"))[0] for key in (A[2], B[2])] == [401, 401]

    visit(groups.url(), narrow)
    visit(groups.url(), test)


def test_a_leader_that_fails(groups: Groups) -> None:
    """Readers of both groups continue with the new leader, and requests that can be repeated succeed."""
    group = groups.groups[int(groups.owner(B[3])) - 1]
    group.add()
    group.wait(members=2)

    async def test(caller: Caller, gateway: GatewayServer) -> None:
        keys = [A[3], B[3]]
        readers = [Events(caller, f"/v1/streams/{key}?after=earliest") for key in keys]
        async with readers[0].open(), readers[1].open():
            following = [asyncio.create_task(each.take(20)) for each in readers]
            await asyncio.gather(*(append(caller, key, 0, 10) for key in keys))
            await asyncio.to_thread(group.wait().kill)
            await asyncio.gather(*(append(caller, key, 10, 20) for key in keys))
            for found in await asyncio.gather(*following):
                assert numbers([each.data for each in found]) == [*range(20)]

    visit(groups.url(), test)
