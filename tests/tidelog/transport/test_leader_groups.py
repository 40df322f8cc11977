"""``LeaderConnection``, ``AsyncConnection``, and what reads with them, in a cluster of two groups as real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis
from click.testing import CliRunner

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tidelog import Client, calls
from tidelog.arrow.rows import to_arrow
from tidelog.cli.program import main
from tidelog.client.entries import StreamId
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, connect
from tidelog.transport.call import plain
from tidelog.transport.errors import OneGroupError, ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError
from tidelog.transport.slots import of_another_group, slot_of

A, B = keys_of_both(8)


class Sale(msgspec.Struct):
    n: int


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with cluster() as servers:
        made = Groups(servers)
        made.groups[1].add()  # a replica
        made.leader(2)
        yield made


def access_of(groups: Groups, **settings: Any) -> Access:
    return Access((f"redis://127.0.0.1:{groups.nodes[0].port}",), retry_ms=10, **settings)


def test_ask_sends_each_call_to_the_leader_of_its_key(groups: Groups) -> None:
    with closing(LeaderConnection(access_of(groups, retries=0), "test-ask")) as servers:
        replies = servers.ask(*[calls.tappend(key, {"n": 1}) for key in (A[0], B[0], A[1], B[1])])
        assert all(isinstance(reply, StreamId) for reply in replies)
        assert servers.ask(plain("EXISTS", A[0], B[0], A[1], B[1]), calls.tlen(B[0]), calls.tdrop()) == [4, 1, 0]
        assert servers.leader(B[0]).ask("TLEN", B[0]) == servers.leader(A[0]).ask("TLEN", A[0]) == 1
        assert servers.ask(plain("SET", B[2], "x"), plain("TLEN", B[2]))[1].code == "WRONGTYPE"
        (crossing,) = servers.ask(calls.tpublish(A[3], 1, B[3]))
        assert isinstance(crossing, ReplyError)
        assert "on different groups of the cluster. Give them one hash tag" in str(crossing)
        assert {client["name"] for client in groups.nodes[1].redis.client_list() if client["cmd"] != "client|list"} >= {
            "test-ask"
        }
    servers.close()
    assert servers.ask(calls.tlen(B[0]), calls.tlen(A[0])) == [1, 1]  # it connects again
    servers.close()


def test_stages_of_both_groups_are_dropped(groups: Groups) -> None:
    with closing(LeaderConnection(access_of(groups), "test")) as servers:
        stages = servers.ask(*[calls.tstage(key, 60_000, key, ["n"], [[1]]) for key in (A[2], B[3])])
        assert stages == [1, 1]
        assert servers.ask(calls.tdrop(A[2], B[3], A[3])) == [2]


def test_requests_without_a_key_fail_with_the_remedy(groups: Groups) -> None:
    with closing(LeaderConnection(access_of(groups), "test")) as servers:

        def do() -> None:
            wire = servers.leader()
            wire.send(("TLEN", B[0]), ("TLEN", B[1]))  # the second reply is not read
            wire.reply()

        with pytest.raises(OneGroupError, match=r"this program uses the keys of one group. Give .* \(MOVED \d+ "):
            servers.attempts(do)


def test_a_replica_of_the_same_group_is_not_another_group(groups: Groups) -> None:
    """MOVED of a replica means that the leader has changed: the attempts continue."""
    replica = groups.groups[1].nodes[1]
    access = Access((f"redis://127.0.0.1:{replica.port}",), retries=1, retry_ms=10)
    with closing(LeaderConnection(access, "test")) as servers:
        with pytest.raises(UnreachableError, match="MOVED"):
            servers.attempts(lambda: servers.leader().ask("TLEN", B[0]))
        assert isinstance(servers.ask(calls.tlen(B[0]))[0], int)  # the map has the leader

    async def run() -> None:
        connection = await connect(access, access.urls[0], "test")
        with pytest.raises(LostError, match="MOVED"):
            await connection.together(calls.tlen(B[0]))
        assert connection.refused

    asyncio.run(run())


def test_a_connection_of_asyncio_names_the_reason(groups: Groups) -> None:
    async def run() -> None:
        access = access_of(groups)
        connection = await connect(access, access.urls[0], "test")
        first, second, third = (
            connection.send([calls.tlen(A[5]), calls.tlen(B[5])]), connection.send([calls.tlen(B[5])]),
            connection.send([plain("SET", A[4], 1)]),
        )  # fmt: skip
        for future in (first, second):
            error = (await future)[-1]
            assert isinstance(error, redis.ResponseError)
            assert "another group of the cluster has this key" in str(error)
        assert await third == [b"OK"]
        assert await connection.together(plain("GET", A[4])) == [b"1"]  # it remains usable
        await _closed_meanwhile(connection)

    async def _closed_meanwhile(connection: AsyncConnection) -> None:
        moved = connection.send([calls.tlen(B[5])])
        connection.close("closed by the test")
        with pytest.raises(LostError, match="closed by the test"):
            await moved
        assert not connection.refused

    asyncio.run(run())


def test_a_user_without_the_permissions_is_named(groups: Groups) -> None:
    groups.nodes[0].redis.execute_command("ACL", "SETUSER", "few", "on", ">p", "~*", "+@read", "+client|setname")
    access = replace(access_of(groups, retries=1), username="few", password="p")
    with (
        closing(LeaderConnection(access, "test")) as servers,
        pytest.raises(UnreachableError, match=r"MOVED .*NOPERM .*needs the permissions \+cluster\|slots \+cluster"),
    ):
        servers.ask(calls.tlen(B[0]))


def test_a_topic_over_both_groups_in_arrow_and_sql(groups: Groups) -> None:
    url = groups.url()
    topic = Topic[Sale]("sales", Sale, partitions=8, url=url)
    topic.sync.send_many(Sale(at) for at in range(800))
    topic.sync.close()
    assert {slot_of(f"sales:{at}") < 8192 for at in range(8)} == {True, False}
    for start in (url, access_of(groups).urls[0]):
        rows = to_arrow(start, "sales")
        assert sorted(rows.to_table()["n"].to_pylist()) == list(range(800))
        assert sorted(rows.to_table()["n"].to_pylist()) == list(range(800))
    done = CliRunner().invoke(main, ["sql", "SELECT max(n) last, count(*) c FROM sales", "--url", url, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"last": 799, "c": 800}


def test_a_stream_whose_slot_is_assigned_between_two_reads(groups: Groups) -> None:
    key = A[6]
    with Client(access_of(groups).urls[0]) as client:
        client.tappend(key, {"n": 1})
        rows = to_arrow(access_of(groups), key, schema={"n": "long"})
        assert rows.to_table()["n"].to_pylist() == [1]
        client.redis.delete(key)
        groups.assign(str(slot_of(key)), to="2", at=1)
        client.tappend(key, {"n": 2})
        assert rows.to_table()["n"].to_pylist() == [2]


@pytest.mark.parametrize("own", [b"me", b"other", ReplyError("NOPERM"), None])
def test_of_another_group(own: Any) -> None:
    slots = [[0, 99, [b"h", 1, b"me"], [b"h", 2, b"second"]], [100, 200, [b"h", 3, b"third"]]]
    assert of_another_group("MOVED 5 h:1", own, slots) is (own == b"other")
    assert not of_another_group("MOVED 300 h:1", own, slots)
    for wrong in (ReplyError("NOPERM"), None, [], [[1]], [[0, 99, 5]]):
        assert not of_another_group("MOVED 5 h:1", own, wrong)
    assert not of_another_group("MOVED", own, slots)
