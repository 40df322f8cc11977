"""``postgres_cdc`` with a real PostgreSQL: the snapshot, all kinds of changes, kills of the flow and of the server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.byteskit import Reader, running
from tests.tidelog.flows.conformancekit import made
from tests.tidelog.flows.sqlkit import SECRET, PostgresPeer, postgres_peer
from tests.waiting import eventually, until
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.api.connector import Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.cdc.columntext import converter
from tidelog.flows.connectors.cdc.pgoutput import ChangeDecoder
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing import check_source

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "changes.yaml"
QUICK = {"retry": {"first": "20ms", "most": "100ms"}}
FAST = {"reconnect": QUICK, "request_timeout": "20s", "status_interval": "500ms"}
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresPeer]:
    with postgres_peer("wal_level=logical", "wal_sender_timeout=4s", "max_replication_slots=50") as peer:
        yield peer


class Shop:
    """A table, and the sources that read its changes."""

    def __init__(self, server: PostgresPeer) -> None:
        self.server = server
        self.name = f"shop{next(NUMBERS)}"
        self.run(f"CREATE TABLE {self.name} (id INT PRIMARY KEY, name TEXT)")

    def run(self, sql: str, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self.server.run(sql, *rows)

    def run_outside(self, sql: str) -> None:
        """Execute a statement that can't be in a transaction."""
        import psycopg

        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(sql)

    def insert(self, low: int, high: int) -> None:
        self.run(f"INSERT INTO {self.name} SELECT n, 'name ' || n FROM generate_series({low}, {high - 1}) n")

    def options(self, **options: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "url": self.server.url, "tables": [self.name], "publication": self.name, "slot": self.name, "create": True,
        }  # fmt: skip
        return FAST | given | options

    def reader(self, **options: Any) -> Reader:
        return Reader("postgres_cdc", **self.options(**options))

    def disconnect(self) -> None:
        """End the connection that uses the slot."""
        slot = f"pg_replication_slots WHERE slot_name = '{self.name}'"
        self.run(f"SELECT pg_terminate_backend(active_pid) FROM {slot}")

    def slots(self) -> dict[str, bool]:
        """The slots of this table, and whether they are used."""
        sql = f"SELECT slot_name, active FROM pg_replication_slots WHERE slot_name LIKE '{self.name}%'"
        return dict(self.run(sql))

    def flushed(self) -> int:
        """The number of bytes of log after the position of the slot."""
        ((found,),) = self.run(
            "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
            f" WHERE slot_name = '{self.name}'"
        )
        return int(found)


@pytest.fixture
def shop(server: PostgresPeer) -> Iterator[Shop]:
    made = Shop(server)
    yield made
    for name in made.slots():
        eventually(lambda: not made.slots()[name])  # noqa: B023
        made.run(f"SELECT pg_drop_replication_slot('{name}')")


@asynccontextmanager
async def streaming(shop: Shop, reader: Reader) -> AsyncIterator[RunningFlow]:
    """Run a flow, which has completed its snapshot."""
    async with running(reader.flow) as one:
        await until(lambda: shop.slots() == {shop.name: True})
        yield one


def ids(reader: Reader, *operations: str) -> list[int]:
    return [each["after"]["id"] for each in reader.values if each["operation"] in operations]


def test_a_snapshot_and_then_changes(shop: Shop) -> None:
    shop.insert(1, 1201)

    async def main() -> None:
        reader = shop.reader()
        async with streaming(shop, reader) as one:
            counts = one.graph.sources["in"].counts
            sizes = [counts["bytes"]]
            shop.insert(1201, 1204)
            shop.run(f"UPDATE {shop.name} SET name = 'x' WHERE id = 1")
            shop.run(f"UPDATE {shop.name} SET id = 5000 WHERE id = 2")
            shop.run(f"DELETE FROM {shop.name} WHERE id = 3")
            shop.run(f"TRUNCATE {shop.name}")
            await until(lambda: len(reader.values) == 1207)
            sizes.append(counts["bytes"])
        assert ids(reader, "read") == list(range(1, 1201))
        assert ids(reader, "insert") == [1201, 1202, 1203]
        table = f"public.{shop.name}"
        assert reader.values[1203:] == [
            {"operation": "update", "table": table, "before": None, "after": {"id": 1, "name": "x"}},
            {"operation": "update", "table": table, "before": {"id": 2}, "after": {"id": 5000, "name": "name 2"}},
            {"operation": "delete", "table": table, "before": {"id": 3}, "after": None},
            {"operation": "truncate", "table": table, "before": None, "after": None},
        ]
        assert reader.events[0].meta == {"operation": "read", "table": table}
        assert sizes[0] == sum(len(f"{number}name {number}") for number in range(1, 1201))
        assert sizes[1] > sizes[0]
        first, second = (each.meta for each in reader.events[1200:1202])
        assert {**first, "number": 2} == second
        assert first["number"] == 1
        assert first["time"][:2] == "20"
        again = shop.reader()
        async with streaming(shop, again):
            shop.insert(1, 2)
            # The server may have stopped before it received the last position: then the changes come again.
            await until(lambda: ids(again, "insert")[-1:] == [1])
            assert "read" not in {each["operation"] for each in again.values}
            await until(lambda: shop.flushed() == 0)

    asyncio.run(main())


VALUES: list[tuple[str, str, Any]] = [
    ("bool", "true", True), ("int8", "-9007199254740993", -9007199254740993), ("float8", "0.1", 0.1),
    ("float4", "'NaN'", "NaN"), ("numeric", "12.50", 12.5),
    ("numeric", "0.12345678901234567890", "0.12345678901234567890"), ("numeric", "'NaN'", "NaN"),
    ("text", "'a\"\\é'", 'a"\\é'), ("bytea", "'\\x00ff'", b"\0\xff"),
    ("timestamptz", "'2026-11-27 10:00:00.5+02'", "2026-11-27T08:00:00.5+00:00"),
    ("timestamp", "'2026-11-27 10:00'", "2026-11-27T10:00:00"), ("timestamp", "'infinity'", "infinity"),
    ("date", "'2026-11-27'", "2026-11-27"), ("time", "'10:00'", "10:00:00"), ("interval", "'1 day 2:03'", "P1DT2H3M"),
    ("jsonb", "'{\"a\": [1, null]}'", {"a": [1, None]}), ("uuid", "'00000000-0000-0000-0000-00000000000a'",
    "00000000-0000-0000-0000-00000000000a"), ("int4[]", "'{{1,2},{3,NULL}}'", [[1, 2], [3, None]]),
    ("text[]", "ARRAY['a,b', 'NULL', '', '\"{', NULL]", ["a,b", "NULL", "", '"{', None]), ("int4[]", "'{}'", []),
    ("int4[]", "'[0:1]={1,2}'", "[0:1]={1,2}"), ("int4range", "'[1,3)'", "[1,3)"), ("text", "NULL", None),
]  # fmt: skip


def test_values_of_all_types_are_equal_in_the_snapshot_and_in_changes(shop: Shop) -> None:
    added = ", ".join(f"ADD c{number} {kind}" for number, (kind, _, _) in enumerate(VALUES))
    shop.run(f"ALTER TABLE {shop.name} {added}")
    values = ", ".join(each for _, each, _ in VALUES)

    async def main() -> None:
        shop.run(f"INSERT INTO {shop.name} VALUES (1, 'a', {values})")
        reader = shop.reader()
        async with streaming(shop, reader):
            shop.run(f"INSERT INTO {shop.name} VALUES (2, 'a', {values})")
            await until(lambda: len(reader.values) == 2)
        for each in reader.values:
            assert [each["after"][f"c{number}"] for number in range(len(VALUES))] == [value for _, _, value in VALUES]

    asyncio.run(main())


def test_large_values_that_are_unchanged(shop: Shop) -> None:
    async def main() -> None:
        reader = shop.reader()
        async with streaming(shop, reader):
            shop.run(f"ALTER TABLE {shop.name} ADD body TEXT, ADD more INT")  # the columns change while it reads
            shop.run(f"ALTER TABLE {shop.name} ALTER body SET STORAGE EXTERNAL")
            shop.run(f"INSERT INTO {shop.name} VALUES (1, 'a', repeat('x', 100000), 1)")
            shop.run(f"UPDATE {shop.name} SET more = 2")
            shop.run(f"ALTER TABLE {shop.name} REPLICA IDENTITY FULL")
            shop.run(f"UPDATE {shop.name} SET more = 3")
            shop.run(f"ALTER TABLE {shop.name} DROP more")
            shop.run(f"UPDATE {shop.name} SET name = 'b'")
            await until(lambda: len(reader.values) == 4)
        large = "x" * 100_000
        assert [each["after"] for each in reader.values] == [
            {"id": 1, "name": "a", "body": large, "more": 1},
            {"id": 1, "name": "a", "more": 2},
            {"id": 1, "name": "a", "body": large, "more": 3},
            {"id": 1, "name": "b", "body": large},
        ]
        assert [each.get("unchanged") for each in reader.values] == [None, ["body"], None, None]
        assert reader.values[2]["before"] == {"id": 1, "name": "a", "body": large, "more": 2}

    asyncio.run(main())


def test_a_large_transaction_is_passed_on_while_it_is_received(shop: Shop) -> None:
    """At most ``max_unsettled`` changes follow the first unsettled one, and the position only moves at the end."""

    async def main() -> None:
        reader = shop.reader(max_unsettled=500)
        failing = {"operation": "insert", "table": f"public.{shop.name}", "before": None}
        reader.fail[str({**failing, "after": {"id": 7, "name": "name 7"}})] = 1_000_000
        async with streaming(shop, reader) as one:
            shop.insert(0, 5000)
            await until(lambda: one.graph.sources["in"].breaker.full in one.graph.sources["in"].breaker)
            assert len(reader.values) < 2000
            reader.fail.clear()
            await until(lambda: len(reader.values) == 5000)
            assert sorted(ids(reader, "insert")) == list(range(5000))
            await until(lambda: shop.flushed() == 0)

    asyncio.run(main())


def test_a_paused_flow_keeps_its_connection_and_its_position(shop: Shop) -> None:
    """The server ends a connection without a report after wal_sender_timeout, 4 s."""

    async def main() -> None:
        reader = shop.reader(status_interval="300ms")
        async with streaming(shop, reader) as one:
            source = one.graph.sources["in"]
            source.pause("api")
            shop.run(f"INSERT INTO {shop.name} SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n")
            connects = one.graph.connections["in"].connects
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > began + 4.5)  # longer than wal_sender_timeout
            assert not reader.values
            source.resume("api")
            await until(lambda: len(reader.values) == 5000)
            assert one.graph.connections["in"].connects == connects

    asyncio.run(main())


def test_the_position_follows_the_log_while_other_tables_change(shop: Shop) -> None:
    async def main() -> None:
        reader = shop.reader(status_interval="50ms")
        async with streaming(shop, reader):
            shop.run(f"CREATE TABLE {shop.name}_other AS SELECT n FROM generate_series(1, 10000) n")
            await until(lambda: shop.flushed() == 0)
        assert reader.values == []

    asyncio.run(main())


def test_a_killed_server_loses_nothing(shop: Shop) -> None:
    async def main() -> None:
        shop.insert(0, 3000)
        reader = shop.reader(max_unsettled=200)
        async with running(reader.flow) as one:
            await until(lambda: len(reader.values) > 300)
            await asyncio.to_thread(shop.server.server.kill)  # within the snapshot
            await asyncio.to_thread(shop.server.server.start)
            await until(lambda: shop.slots() == {shop.name: True})
            assert set(ids(reader, "read")) == set(range(3000))
            before = len(reader.values)
            shop.insert(3000, 6000)
            await until(lambda: len(reader.values) > before + 300)
            await asyncio.to_thread(shop.server.server.kill)  # within a transaction
            await asyncio.to_thread(shop.server.server.start)
            shop.insert(6000, 6010)
            await until(lambda: len(reader.values) >= before + 3010)
            assert ids(reader, "insert") == list(range(3000, 6010))  # no duplicates, because the process lives
            await until(lambda: one.graph.sources["in"].unsettled == 0)

    asyncio.run(main())


def test_a_killed_flow_loses_nothing(shop: Shop, tmp_path: Path) -> None:
    """It is killed within the snapshot, within a transaction, and later."""
    output = tmp_path / "out.jsonl"
    (tmp_path / "flow.yaml").write_text(f"""
flows:
  copy:
    connectors:
      in:
        {{type: postgres_cdc, url: "{shop.server.url}", slot: {shop.name}, publication: {shop.name},
          tables: [{shop.name}], create: true, max_unsettled: 200, status_interval: 1s,
          reconnect: {{retry: {{first: 50ms, most: 200ms}}}}}}
      out: {{type: file, path: "{output}", codec: json}}
    pipelines:
      ids: [{{map: "after.id"}}]
    connect: [in -> ids -> out]
""")
    shop.insert(0, 2000)
    number = 2000
    for kill in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "flow", "run", tmp_path / "flow.yaml", "--listen", "none"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            before = _count(output)
            if kill:
                shop.insert(number, number + 1000)
                number += 1000
            eventually(lambda: _count(output) > before + 300)  # noqa: B023
            if kill == 2:
                eventually(lambda: len(set(output.read_text().split())) == number)  # noqa: B023
        finally:
            process.kill()
            process.wait()
    assert set(map(int, output.read_text().split())) == set(range(number))


def _count(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


async def _error(shop: Shop, **options: Any) -> str:
    """Return why a source can't connect."""
    reader = shop.reader(reconnect="none", **options)
    async with running(reader.flow, started=False) as one:
        await until(lambda: one.graph.connections["in"].failed)
        assert SECRET not in one.graph.connections["in"].error
        return one.graph.connections["in"].error


def test_errors_name_the_remedy(shop: Shop) -> None:
    async def main() -> None:
        text = await _error(shop, create=False)
        assert f'execute CREATE PUBLICATION "{shop.name}" FOR TABLE "public"."{shop.name}", or use create: true' in text
        shop.run(f"CREATE TABLE {shop.name}_log (line TEXT)")
        assert "REPLICA IDENTITY FULL" in await _error(shop, tables=[f"{shop.name}_log"])
        shop.run(f"CREATE PUBLICATION {shop.name} FOR TABLE {shop.name}")
        assert "ADD TABLE" in await _error(shop, create=False, tables=[shop.name, f"{shop.name}_log"])
        assert "does not exist" in await _error(shop, tables=["nothing"])
        shop.run(f"CREATE ROLE {shop.name} LOGIN PASSWORD '{SECRET}'")
        url = shop.server.url.replace("tide:", f"{shop.name}:")
        assert f'ALTER ROLE "{shop.name}" REPLICATION' in await _error(shop, url=url)
        assert "password authentication failed" in await _error(shop, password="wrong")
        shop.run(f"SELECT pg_create_logical_replication_slot('{shop.name}', 'test_decoding')")
        assert "has another purpose (test_decoding" in await _error(shop)

    asyncio.run(main())


def test_a_slot_that_is_used(shop: Shop) -> None:
    async def main() -> None:
        reader = shop.reader()
        async with streaming(shop, reader) as one:
            assert "is used by another connection (process " in await _error(shop)
            shop.disconnect()
            await until(lambda: one.graph.connections["in"].connects == 2)
            shop.insert(0, 3)
            await until(lambda: len(reader.values) == 3)

    asyncio.run(main())


def test_a_slot_that_is_dropped_or_created_again_during_a_run(shop: Shop) -> None:
    async def main() -> None:
        reader = shop.reader(reconnect={"retry": {"first": "500ms", "most": "500ms"}})
        async with streaming(shop, reader) as one:
            shop.insert(0, 3)
            await until(lambda: len(reader.values) == 3)
            connection = one.graph.connections["in"]
            shop.disconnect()
            eventually(lambda: not shop.slots()[shop.name])
            shop.run(f"SELECT pg_drop_replication_slot('{shop.name}')")
            await until(lambda: "was dropped: changes are missing. To continue, restart the flow" in connection.error)
            shop.insert(3, 6)
            shop.run(f"SELECT pg_create_logical_replication_slot('{shop.name}', 'pgoutput')")
            await until(lambda: "was dropped and created again at" in connection.error)
            assert not connection.connected
            assert len(reader.values) == 3  # it does not continue without the missing changes
        shop.run(f"SELECT pg_drop_replication_slot('{shop.name}')")
        again = shop.reader()
        async with streaming(shop, again):
            assert ids(again, "read") == list(range(6))

    asyncio.run(main())


@pytest.mark.parametrize("ahead", [False, True], ids=["behind", "ahead"])
def test_a_server_that_is_replaced_by_an_older_copy(shop: Shop, tmp_path: Path, ahead: bool) -> None:
    """Its log ends before the last change that was received, or has other changes at these positions."""
    peer, copy = shop.server, tmp_path / "copy"
    numbers = range(1000, 4000 if ahead else 1010)
    new = f"INSERT INTO {shop.name} SELECT n, repeat('x', 1000) FROM generate_series(1000, {numbers[-1]}) n"

    def replace() -> None:
        peer.server.kill()
        shutil.rmtree(peer.data)
        shutil.copytree(copy, peer.data)
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "postgres", peer.data], check=True)
        if ahead:
            peer.run_alone(new)
        peer.server.start()

    async def main() -> None:
        reader = shop.reader()
        async with streaming(shop, reader) as one:
            connection = one.graph.connections["in"]
            shop.insert(0, 3)
            await until(lambda: len(reader.values) == 3)
            peer.server.kill()
            shutil.copytree(peer.data, copy)
            peer.server.start()
            shop.run(f"INSERT INTO {shop.name} SELECT n, repeat('y', 1000) FROM generate_series(3, 999) n")
            await until(lambda: len(reader.values) == 1000)
            await asyncio.to_thread(replace)
            text = "does not send the transaction again that was" if ahead else "the log of the server ends at"
            await until(lambda: text in connection.error)
            assert "restart the flow" in connection.error
            if not ahead:
                shop.run(new)
            assert len(reader.values) == 1000
        again = shop.reader()
        async with streaming(shop, again):
            await until(lambda: ids(again, "insert")[-len(numbers) :] == [*numbers])

    asyncio.run(main())


def test_a_slot_whose_log_is_removed(shop: Shop) -> None:
    """It is removed while the flow runs, and is behind. After that, no flow continues without the missing changes."""

    async def main() -> None:
        flow = Flow("slow")
        flow.connector("in", "postgres_cdc", **shop.options())
        flow.connector("out", "script", act="hangs")
        flow.connect("in -> out")
        async with running(flow) as one:
            await until(lambda: shop.slots() == {shop.name: True})
            connection = one.graph.connections["in"]
            shop.insert(0, 1)
            await until(lambda: one.graph.sinks["out"].in_flight == 1)
            for setting in ("max_slot_wal_keep_size = '1MB'", "max_wal_size = '32MB'"):
                shop.run_outside(f"ALTER SYSTEM SET {setting}")
            shop.run("SELECT pg_reload_conf()")

            def lost() -> bool:
                shop.run("SELECT pg_switch_wal()")
                shop.insert(1, 2000)
                shop.run(f"TRUNCATE {shop.name}")
                shop.run_outside("CHECKPOINT")
                return "is lost" in connection.error

            await until(lambda: asyncio.to_thread(lost))
            assert connection.connects == 1
        for text in (connection.error, await _error(shop)):
            assert "changes are missing. Increase max_slot_wal_keep_size" in text
            assert f"SELECT pg_drop_replication_slot('{shop.name}'), and restart the flow" in text

    try:
        asyncio.run(main())
    finally:
        for setting in ("max_slot_wal_keep_size", "max_wal_size"):
            shop.run_outside(f"ALTER SYSTEM RESET {setting}")
        shop.run("SELECT pg_reload_conf()")


def test_tls_and_several_tables_and_changes_only(shop: Shop) -> None:
    shop.insert(0, 3)
    shop.run(f"CREATE SCHEMA {shop.name}")
    shop.run(f"CREATE TABLE {shop.name}.orders (id INT PRIMARY KEY)")

    async def main() -> None:
        tables = [shop.name, f"{shop.name}.orders"]
        reader = shop.reader(snapshot=False, tables=tables, tls={"ca": shop.server.ca})
        async with streaming(shop, reader):
            shop.insert(3, 4)
            shop.run(f"INSERT INTO {shop.name}.orders VALUES (7)")
            await until(lambda: len(reader.values) == 2)
        assert [(each["table"], each["after"]["id"]) for each in reader.values] == [
            (f"public.{shop.name}", 3), (f"{shop.name}.orders", 7),
        ]  # fmt: skip

    asyncio.run(main())


def test_wrong_options(shop: Shop) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"slot": "Not-Valid"}, "lower-case letters"),
        ({"url": "mysql://a@b/c"}, "must begin with postgresql://"),
        ({"tables": []}, "create needs tables"),
        ({"tables": ["a.b.c"]}, "is not a table"),
        ({"publication": ""}, "publication is empty"),
    ]
    for options, text in cases:
        with pytest.raises(FlowFileError, match=text):
            shop.reader(**options).flow.spec()


def test_messages_that_are_not_valid() -> None:
    for data in (b"B\0", b"R\0\0\0\1a", b"I\0\0\0\1N\0\0", b"T\0\0\0\1\0\0\0\0\1"):
        with pytest.raises((ValueError, LookupError)):
            ChangeDecoder().decode(data)
    assert converter(0)("x") == "x"


def test_conformance(shop: Shop) -> None:
    async def produce(_: Source, number: int) -> None:
        ((low,),) = shop.run(f"SELECT count(*) FROM {shop.name}")
        for each in range(low, low + number):
            shop.insert(each, each + 1)

    make = made("postgres_cdc", url=shop.server.url, slot=shop.name, tables=[shop.name], create=True, snapshot=False)
    check_source(make, produce=produce, redelivers=True)


def test_the_example(shop: Shop) -> None:
    """The changes of customers are applied to another table."""
    shop.run("CREATE TABLE IF NOT EXISTS customers (id INT PRIMARY KEY, name TEXT)")
    shop.run("CREATE TABLE IF NOT EXISTS copies (id INT PRIMARY KEY, name TEXT)")
    shop.run("INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob')")
    given = {"SHOP": shop.server.url, "COPY": shop.server.url}
    spec = read_text(EXAMPLE.read_text(), variables=given).flows["copy"]

    async def main() -> None:
        one = RunningFlow(spec, FlowContext("copy", dead_letters=None))
        await one.start()
        try:
            await until(lambda: shop.run("SELECT * FROM copies ORDER BY id") == [(1, "Ada"), (2, "Bob")])
            shop.run("UPDATE customers SET name = 'Eve' WHERE id = 2")
            shop.run("DELETE FROM customers WHERE id = 1")
            shop.run("INSERT INTO customers VALUES (3, 'Kim')")
            shop.run("UPDATE customers SET id = 4 WHERE id = 2")  # the row with the old key is deleted
            await until(lambda: shop.run("SELECT * FROM copies ORDER BY id") == [(3, "Kim"), (4, "Eve")])
            shop.run("TRUNCATE customers")
            await until(lambda: shop.run("SELECT * FROM copies") == [])
        finally:
            await one.stop()

    asyncio.run(main())
