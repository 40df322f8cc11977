"""``mode: changes`` of ``sql`` with real PostgreSQL, MariaDB, and SQLite: all changes, again, and their order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.tidelog.flows.netkit import feed, running
from tests.tidelog.flows.serverkit import in_loop
from tests.tidelog.flows.sqlkit import SqlPeer, SqlPeers
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError

FAST = {"request_timeout": "5s", "reconnect": {"retry": {"first": "20ms", "most": "100ms"}}}
COLUMNS = "id INTEGER, shop INTEGER, name VARCHAR(20) NOT NULL, note VARCHAR(20), PRIMARY KEY (id, shop)"


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, peers: SqlPeers) -> SqlPeer:
    return peers.get(request.param)


def sink(peer: SqlPeer, **options: Any) -> tuple[Flow, Any]:
    peer.run("DROP TABLE IF EXISTS copies")
    peer.run(f"CREATE TABLE copies ({COLUMNS})")
    flow = Flow("shop")
    given = {"url": peer.url, "table": "copies", "mode": "changes", "key": ["id", "shop"]}
    flow.connector("db", "sql", **FAST | given | options)
    source = feed(flow)
    flow.connect("in -> db")
    return flow, source


def row(number: int, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": number, "shop": 1, "name": name, **more}


def change(operation: str, after: Any = None, before: Any = None, **more: Any) -> dict[str, Any]:
    return {"operation": operation, "before": before, "after": after, **more}


def rows(peer: SqlPeer) -> list[tuple[Any, ...]]:
    return peer.run("SELECT id, name, note FROM copies ORDER BY id")


CHANGES = [
    change("read", row(1, note="x")),
    change("read", row(2, note="large")),
    change("insert", row(3, note="z")),
    change("update", row(1, "b", note=None)),
    change("update", row(7, "c", note="z"), {"id": 3, "shop": 1}),  # the key
    change("update", row(8, "d"), {"id": 2, "shop": 1}, unchanged=["note"]),  # the key, without a large value
    change("update", {"id": 7, "shop": 1, "note": "zz"}, unchanged=["name"]),
    change("insert", row(9, note="9")),
    change("delete", None, {"id": 9, "shop": 1}),
    change("insert", row(3, "new", note="3")),  # a key that is used again
]
COPY = [(1, "b", None), (3, "new", "3"), (7, "c", "zz"), (8, "d", "large")]


@in_loop
async def test_the_copy_has_the_rows_of_the_table(database: SqlPeer) -> None:
    flow, source = sink(database)
    async with running(flow):
        source.give(*(Event(each, None, number) for number, each in enumerate(CHANGES)))
        await until(lambda: len(source.outcomes) == len(CHANGES))
        assert not [each for each in source.outcomes.values() if each[0] != "ok"]
        assert rows(database) == COPY
        for low in range(len(CHANGES)):  # the changes after a position are sent again
            source.outcomes.clear()
            source.give(*(Event(each, None, number) for number, each in enumerate(CHANGES[low:])))
            await until(lambda: len(source.outcomes) == len(CHANGES) - low)  # noqa: B023
            assert [row[:2] for row in rows(database)] == [row[:2] for row in COPY], low
        source.give(Event(change("truncate"), None, "all"))
        await until(lambda: "all" in source.outcomes)
        assert rows(database) == []


@in_loop
async def test_a_change_that_cannot_be_applied_is_rejected(database: SqlPeer) -> None:
    flow, source = sink(database)
    bad = [
        ({"id": 1}, "a change is an object with operation, before and after"),
        (change("insert"), "after has no 'id' for the key column 'id'"),
        (change("delete", None, {"id": 1}), "REPLICA IDENTITY FULL"),
        (change("update", row(1), unchanged="note"), "unchanged must be a list"),
        (change("insert", row(1, None)), ""),  # type: ignore[arg-type] # NOT NULL
        (change("insert", row(1, colour="red")), "no column 'colour'"),
        (change("update", {"id": 5, "shop": 1}, unchanged=["name"]), ""),  # there is no such row
    ]
    async with running(flow):
        source.give(*(Event(each, None, number) for number, (each, _) in enumerate(bad)))
        source.give(Event(change("insert", row(4)), None, "good"))
        await until(lambda: len(source.outcomes) == len(bad) + 1)
    assert source.outcomes.pop("good")[0] == "ok"
    for number, (_, text) in enumerate(bad):
        assert source.outcomes[number][0] == "reject"
        assert text in source.outcomes[number][1]
    assert rows(database) == [(4, "a", None)]


@in_loop
async def test_columns_with_other_names(database: SqlPeer) -> None:
    columns = {"id": "number", "shop": "meta.shop", "name": "item.name", "note": "text"}
    flow, source = sink(database, columns=columns)
    after = {"number": 1, "item": {"name": "tea"}, "text": "long"}
    values = [
        change("insert", after),
        change("update", {"number": 2, "item": {"name": "milk"}}, {"number": 1}, unchanged=["text"]),
    ]
    async with running(flow):
        source.give(*(Event(each, {"shop": 1}, number) for number, each in enumerate(values)))
        await until(lambda: len(source.outcomes) == 2)
    assert rows(database) == [(2, "milk", "long")]


@in_loop
async def test_the_order_is_preserved_also_if_the_server_is_killed(database: SqlPeer) -> None:
    """The last value of each row is that of its last change, although writes fail and are repeated."""
    flow, source = sink(database)
    numbers = random.Random(3)
    values = [change("insert", row(each % 50, str(each))) for each in range(3000)]
    async with running(flow) as made:
        at = 0
        while at < len(values):
            size = numbers.randrange(100, 300)
            source.give(*(Event(each, None, at + number) for number, each in enumerate(values[at : at + size])))
            at += size
            if at > 1000 and database._server is not None and made.graph.connections["db"].connects == 1:
                await asyncio.to_thread(database.server.kill)
                await asyncio.to_thread(database.server.start)
                await until(lambda: made.graph.connections["db"].connects > 1)
        await until(lambda: len(source.outcomes) == len(values))
    assert {status for status, _ in source.outcomes.values()} == {"ok"}
    assert {number: int(name) for number, name, _ in rows(database)} == {each % 50: each for each in range(2950, 3000)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": []}, "key is missing: mode changes needs"),
        ({"concurrency": 2}, "concurrency: mode changes needs 1"),
        ({"timeout": "1s"}, "timeout: omit it with mode changes"),
        ({"columns": ["name"]}, "key: 'id' is not in columns"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    given = {"url": "sqlite:///x.db", "table": "copies", "mode": "changes", "key": ["id"]}
    with pytest.raises(FlowFileError, match=text):
        flow.connector("out", "sql", **given | options)
