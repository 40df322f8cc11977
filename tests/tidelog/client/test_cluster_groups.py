"""The clients and two server groups that share the slots, as real processes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis

from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.waiting import eventually
from tidelog import AsyncClient, Client, calls
from tidelog.transport.call import plain
from tidelog.transport.slots import slot_of

A, B = keys_of_both(8)


def test_streams_of_both_groups(groups: Groups) -> None:
    with Client(f"redis://127.0.0.1:{groups.nodes[0].port}") as client:
        for key in (A[0], B[0], A[1], B[1]):
            client.tappend(key, {"n": 1})
            assert client.tlen(key) == 1
        ids = client.together(*[calls.tappend(key, {"n": 2}) for key in (B[0], A[0], B[1])], calls.tlen(B[0]))
        assert ids[3] == 2
        # keys of different slots of one group
        assert client.redis.mget(A[2], A[3]) == [None, None]
        assert client.tstage(B[2], 60_000, B[3], ["n"], [[1]]) == 1
        assert client.tpublish(B[4], 1, B[2]).now
        with pytest.raises(redis.ResponseError, match="on different groups"):
            client.tpublish(A[4], 1, B[2])
        assert set(client.redis.scan_iter(_type="stream")) == {
            key.encode() for key in (A[0], B[0], A[1], B[1], B[3])
        }  # fmt: skip


def test_a_wait_for_streams_of_both_groups(groups: Groups) -> None:
    with Client(groups.url()) as client:
        last = {key: client.tappend(key, {"n": 1}) for key in (A[5], B[5])}
        found: list[Any] = []
        wait = threading.Thread(target=lambda: found.extend(client.twait(last, block=20_000)))
        wait.start()
        nodes = [node.redis for node in groups.nodes]
        eventually(lambda: all(node.info("clients")["blocked_clients"] for node in nodes), "both members wait")
        last[B[5]] = client.tappend(B[5], {"n": 2})
        wait.join(10)
        assert found == [B[5].encode()]
        eventually(lambda: not any(node.info("clients")["blocked_clients"] for node in nodes), "nobody waits")

    async def run() -> None:
        async with AsyncClient(groups.url()) as client:
            assert await client.twait({A[5]: "0", B[5]: "0"}, block=20_000)
            assert await client.twait(last, block=20) == []

    asyncio.run(run())


def test_slots_that_are_assigned_while_a_client_appends(groups: Groups) -> None:
    """The stream is deleted before its slot is assigned, so each round begins with an empty stream."""
    key = A[6]
    with Client(groups.url()) as client:
        for number in range(4):
            owner, other = (1, 2) if number % 2 == 0 else (2, 1)
            client.together(*[calls.tappend(key, {"n": n}) for n in range(20)])
            assert client.tlen(key) == 20
            client.redis.delete(key)
            groups.assign(str(slot_of(key)), to=str(other), at=owner)
        assert client.together(plain("INCR", f"{{{key}}}n"), plain("INCR", f"{{{key}}}n")) == [1, 2]
