"""``sql`` with real PostgreSQL, MariaDB, and SQLite: rejected rows, cursors, servers that are killed or stopped."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.tidelog.flows.netkit import feed, running, seen
from tests.tidelog.flows.serverkit import in_loop
from tests.tidelog.flows.sqlkit import SECRET, SqlPeer, SqlPeers
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError, op
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.positionfile import load_position
from tidelog.flows.connectors.sql.columnvalues import plain
from tidelog.flows.connectors.sql.options import DRIVERS, SqlOptions, parsed
from tidelog.flows.connectors.sql.rowreader import RowReader
from tidelog.flows.connectors.sql.statements import Dialect, Statement
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "databases.yaml"
SERVERS = ("postgres", "mariadb")
FAST = {"request_timeout": "1s", "reconnect": {"retry": {"first": "20ms", "most": "100ms"}}}


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, peers: SqlPeers) -> SqlPeer:
    """A database with the empty table ``orders``."""
    return emptied(peers.get(request.param))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, peers: SqlPeers) -> SqlPeer:
    return emptied(peers.get(request.param))


def emptied(peer: SqlPeer) -> SqlPeer:
    peer.run("DROP TABLE IF EXISTS orders")
    columns = "id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, amount NUMERIC(10, 2) CHECK (amount > 0)"
    peer.run(f"CREATE TABLE orders ({columns})")
    return peer


def sink(peer: SqlPeer, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("shop")
    if "query" in options:
        flow.connector("db", "sql_query", url=peer.url, **{**FAST, **options})
    else:
        flow.connector("db", "sql", url=peer.url, **{**FAST, "table": "orders", **options})
    source = feed(flow)
    flow.connect("in -> db")
    return flow, source


async def settled(source: Any, count: int) -> None:
    await until(lambda: len(source.outcomes) == count)


async def arrived(out: Any, count: int) -> None:
    await until(lambda: len(out.values) >= count)


async def connection_error(made: Any) -> str:
    """The error of connecting, once there is one."""
    return str(await until(lambda: made.graph.sinks["db"].connection.error))


def events(*values: Any) -> list[Event]:
    return [Event(value, {"region": "north"}, number) for number, value in enumerate(values)]


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": f"order {number}", "amount": 1.5, **more}


def orders(peer: SqlPeer) -> list[Any]:
    return [(number, name, None if amount is None else float(amount))
            for number, name, amount in peer.run("SELECT id, name, amount FROM orders ORDER BY id")]  # fmt: skip


# -- writing -------------------------------------------------------------------------------------------------
@in_loop
async def test_rows_that_the_database_rejects_do_not_affect_the_others(database: SqlPeer, caplog: Any) -> None:
    flow, source = sink(database)
    bad = [order(3, amount=-1), order(5, name=None), order(1), order(7, colour="red"), order(8, name=object()), "text",
           order(9, name="\ud800"), {}]  # fmt: skip
    good = [order(number) for number in range(10, 60)]
    values = [order(1), bad[0], *good[:20], bad[1], bad[2], *bad[3:], *good[20:]]
    async with running(flow):
        source.give(*events(*values))
        await until(lambda: len(source.outcomes) == len(values))
    rejected = [value for number, value in enumerate(values) if source.outcomes[number][0] == "reject"]
    assert rejected == bad
    assert {status for status, _ in source.outcomes.values()} == {"ok", "reject"}
    assert [number for number, _, _ in orders(database)] == [1, *range(10, 60)]
    reasons = [source.outcomes[values.index(each)][1] for each in bad[3:6]]
    assert reasons[0] == "db: the table orders has no column 'colour'"
    assert "can't be stored in a column" in reasons[1]
    assert reasons[2] == "db: a row is an object, not str"
    assert [each.getMessage() for each in caplog.records if each.name == "psycopg"] == []


@in_loop
async def test_upsert_and_ignore(database: SqlPeer) -> None:
    for mode, expected in (("upsert", "new"), ("ignore", "order 1")):
        emptied(database)
        flow, source = sink(database, mode=mode, key=["id"], columns={"id": "number", "name": "item.name"})
        async with running(flow):
            values = [{"number": 1, "item": {"name": "order 1"}}, {"number": 1, "item": {"name": "new"}}, {"number": 2}]
            source.give(*events(*values))
            await settled(source, 3)
        assert [source.outcomes[number][0] for number in range(3)] == ["ok", "ok", "reject"]  # the name is NOT NULL
        assert [row[:2] for row in orders(database)] == [(1, expected)]


@in_loop
async def test_a_batch_is_settled_member_by_member(database: SqlPeer) -> None:
    flow = Flow("shop")
    flow.connector("db", "sql", url=database.url, table="orders")
    flow.pipeline("gather", op("batch", count=3))
    source = feed(flow)
    flow.connect("in -> gather -> db")
    async with running(flow):
        source.give(*events(order(1), order(1), order(2)))
        await until(lambda: len(source.outcomes) == 3)
    assert [source.outcomes[number][0] for number in range(3)] == ["ok", "reject", "ok"]


@in_loop
async def test_an_event_executes_a_query_and_its_rows_leave_on_out(database: SqlPeer) -> None:
    database.run("INSERT INTO orders VALUES (1, 'a ''b'' %s', 1.25), (2, 'c', 3)")
    flow, source = sink(
        database, max_rows=1,
        query="SELECT name, amount, ':x %s' AS text FROM orders WHERE id >= :id AND :meta.region = 'north' -- :no",
    )  # fmt: skip
    out = seen(flow)
    flow.connect("db -> seen")
    async with running(flow):
        source.give(*events({"id": 2}, {"id": 3}, {"id": 1}, {}, {"id": "2"}))
        await until(lambda: len(source.outcomes) == 5)
    row = {"name": "c", "amount": 3, "text": ":x %s"}
    assert out.values[:2] == [[row], []]
    assert source.outcomes[2] == ("reject", "db: the result has more than max_rows, 1 rows")
    assert source.outcomes[3] == ("reject", "db: the event has no 'id' for the parameter :id")
    assert source.outcomes[0][0] == "ok"


@in_loop
async def test_an_event_executes_a_statement(database: SqlPeer) -> None:
    database.run("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    flow, source = sink(database, query="DELETE FROM orders WHERE id = :order.id")
    async with running(flow):
        source.give(*events({"order": {"id": 1}}, {"order": {"id": 7}}))
        await until(lambda: len(source.outcomes) == 2)
    assert [row[0] for row in orders(database)] == [2]


@in_loop
async def test_a_missing_table_or_column_is_reported_and_no_event_is_rejected(database: SqlPeer) -> None:
    for options, text in (({"table": "missing"}, "missing"), ({"columns": ["id", "colour"]}, "no column 'colour'")):
        flow, source = sink(database, **options)
        async with running(flow) as made:
            source.give(*events(order(1)))
            assert text in await connection_error(made)
            assert not source.outcomes


# -- reading -------------------------------------------------------------------------------------------------
def reading(peer: SqlPeer, directory: Path, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("shop")
    given = {
        "query": "SELECT id, name, amount FROM orders WHERE id > :cursor ORDER BY id", "cursor": "id", "start": 0,
        "position": str(directory / "position"), "every": "20ms",
    }  # fmt: skip
    flow.connector("db", "sql", url=peer.url, **{**FAST, **given, **options})
    out = seen(flow)
    flow.connect("db -> seen")
    return flow, out


@in_loop
async def test_new_rows_are_read_once_also_after_a_restart(database: SqlPeer, tmp_path: Path) -> None:
    database.run("INSERT INTO orders VALUES (1, 'a', 1.25), (2, 'b', NULL)")
    flow, out = reading(database, tmp_path)
    async with running(flow):
        await until(lambda: len(out.values) == 2)
        database.run("INSERT INTO orders VALUES (3, 'c', 3)")
        await until(lambda: len(out.values) == 3)
        position = tmp_path / "position"
        await until(lambda: position.exists() and position.read_text() == '{"cursor":3}\n')
    assert out.values == [
        {"id": 1, "name": "a", "amount": 1.25}, {"id": 2, "name": "b", "amount": None},
        {"id": 3, "name": "c", "amount": 3},
    ]  # fmt: skip
    flow, out = reading(database, tmp_path)
    async with running(flow):
        database.run("INSERT INTO orders VALUES (4, 'd', 4)")
        await until(lambda: out.values)
    assert [each["id"] for each in out.values] == [4]


@in_loop
async def test_the_position_waits_for_all_rows_of_a_value(peers: SqlPeers, tmp_path: Path) -> None:
    database = emptied(peers.get("sqlite"))
    database.run("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 2), (4, 'd', 3)")
    position = tmp_path / "position"
    options = SqlOptions(
        url=database.url, query="SELECT * FROM orders WHERE amount > :cursor ORDER BY amount, id",
        cursor="amount", start=0, position=str(position),
    )  # fmt: skip
    connection = options.database("test")
    await connection.open()
    reader = RowReader(options)
    await reader.fill(connection)
    assert [each.id for each in reader.take(10)] == [1, 2, 3, 4]
    for numbers, cursor in (([1, 2], 1), ([4], 1), ([3], 3)):
        await reader.settled(numbers)
        assert load_position(position, dict[str, int]) == {"cursor": cursor}
    await connection.close()


@in_loop
async def test_a_large_result_is_read_in_portions(database: SqlPeer, tmp_path: Path) -> None:
    database.run("INSERT INTO orders (id, name) VALUES " + ", ".join(f"({number}, 'x')" for number in range(1, 2502)))
    flow, out = reading(database, tmp_path, max_unsettled=100)
    async with running(flow):
        await until(lambda: len(out.values) == 2501)
    assert [each["id"] for each in out.values] == list(range(1, 2502))


@in_loop
async def test_a_query_without_a_cursor_runs_once_or_periodically(database: SqlPeer) -> None:
    database.run("INSERT INTO orders VALUES (1, 'a', 1)")
    for every, count in ((None, 1), ("10ms", 3)):
        flow = Flow("shop")
        flow.connector("db", "sql", url=database.url, query="SELECT count(*) AS n FROM orders", every=every)
        out = seen(flow)
        flow.connect("db -> seen")
        async with running(flow) as made:
            await arrived(out, count)
            if every is None:
                await made.finished()
                assert out.values == [{"n": 1}]


@in_loop
async def test_a_cursor_that_decreases_is_an_error(peers: SqlPeers, tmp_path: Path) -> None:
    database = emptied(peers.get("sqlite"))
    database.run("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    flow, _ = reading(database, tmp_path, query="SELECT id FROM orders WHERE id > :cursor ORDER BY id DESC")
    one = RunningFlow(flow.spec(), FlowContext("shop"))
    await one.start()
    await until(lambda: one.status == "failed")
    assert "query needs ORDER BY id" in one.error
    await one.stop()


# -- faults --------------------------------------------------------------------------------------------------
@in_loop
async def test_no_row_is_lost_if_the_server_is_killed(server: SqlPeer) -> None:
    flow, source = sink(server, mode="upsert", key=["id"])
    async with running(flow):
        source.give(*events(*(order(number) for number in range(100))))
        await until(lambda: len(source.outcomes) == 100)
        await asyncio.to_thread(server.server.kill)
        source.outcomes.clear()
        source.give(Event(order(1000), None, "lost"))
        await until(lambda: source.outcomes)
        assert source.outcomes["lost"][0] == "retry"
        await asyncio.to_thread(server.server.start)
        source.give(*(Event(order(number), None, number) for number in range(200, 300)))
        await until(lambda: sum(1 for status, _ in source.outcomes.values() if status == "ok") == 100)
    assert [row[0] for row in orders(server)][-100:] == list(range(200, 300))


@in_loop
async def test_a_stopped_server_is_a_timeout(server: SqlPeer, tmp_path: Path) -> None:
    flow, source = sink(server, mode="upsert", key=["id"], request_timeout="200ms")
    reader, out = reading(server, tmp_path, request_timeout="200ms")
    async with running(flow), running(reader):
        source.give(*events(order(1)))
        await until(lambda: len(source.outcomes) == 1 and len(out.values) == 1)
        with server.server.stopped():
            source.give(Event(order(2), None, "late"))
            await until(lambda: "late" in source.outcomes)
            assert source.outcomes["late"] == ("retry", "db: no reply within 0.2 s")
        source.give(Event(order(3), None, "next"))
        await until(lambda: source.outcomes.get("next", ("", ""))[0] == "ok")
        await until(lambda: out.values[-1]["id"] == 3)


@in_loop
async def test_a_flow_ends_soon_while_the_server_is_stopped(server: SqlPeer) -> None:
    flow, source = sink(server, request_timeout="30s")
    async with running(flow) as made:
        source.give(*events(order(1)))
        await settled(source, 1)
        with server.server.stopped():
            source.give(Event(order(2), None, "late"))
            await until(lambda: made.graph.sinks["db"].in_flight)
            async with asyncio.timeout(20):
                await made.stop()
    flow, source = sink(server, request_timeout="30s")
    with server.server.stopped():
        async with asyncio.timeout(20), running(flow):
            await asyncio.sleep(0.05)  # it connects
    await asyncio.to_thread(server.server.wait)


@in_loop
async def test_wrong_credentials_are_reported_without_the_password(server: SqlPeer, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "tidelog")
    wrong = SECRET + "-wrong"
    flow = Flow("shop")
    flow.connector("db", "sql", url=server.url.replace(SECRET, wrong), table="orders", **FAST)
    source = feed(flow)
    flow.connect("in -> db")
    async with running(flow) as made:
        source.give(*events(order(1)))
        error = await connection_error(made)
        assert "tide" in error
        assert not source.outcomes
    assert wrong not in error + caplog.text
    assert SECRET not in error + caplog.text


@in_loop
async def test_tls_verifies_the_server(server: SqlPeer, tmp_path: Path) -> None:
    encrypted = {
        "postgresql": "INSERT INTO orders SELECT 1, version, 1 FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        "mysql": "INSERT INTO orders SELECT 1, variable_value, 1 FROM information_schema.session_status "
                 "WHERE variable_name = 'ssl_version'",
    }  # fmt: skip
    flow, source = sink(server, query=encrypted[server.url.partition(":")[0]], tls={"ca": server.ca})
    async with running(flow):
        source.give(*events({}))
        await settled(source, 1)
    assert [row[1] for row in orders(server)] == ["TLSv1.3"]
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    flow, source = sink(server, tls={"ca": str(tmp_path / "other.pem")})
    async with running(flow) as made:
        assert "certificate" in (await connection_error(made)).lower()


@in_loop
async def test_a_peer_that_is_no_database(tmp_path: Path) -> None:
    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff\x00HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        writer.close()

    listener = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    (tmp_path / "garbage.db").write_bytes(b"no database at all" * 100)
    urls = [f"postgresql://127.0.0.1:{port}/x", f"mysql://u@127.0.0.1:{port}/x", f"sqlite:///{tmp_path}/garbage.db"]
    for url in urls:
        flow = Flow("shop")
        flow.connector("db", "sql", url=url, table="orders", **FAST)
        source = feed(flow)
        flow.connect("in -> db")
        async with running(flow) as made:
            assert await connection_error(made)
        assert source.outcomes == {}
    listener.close()


# -- options, statements -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "oracle://x"}, "url: it must begin with postgresql://, mysql:// or sqlite:///"),
        ({"url": "postgresql://u:p@ss@h/d"}, "a password with @"),
        ({"url": "postgresql://u:p@ss%zz@h/d"}, "a password with @"),
        *(
            ({"url": f"{kind}://u:{password}@h/d"}, "or % must be escaped")
            for kind in ("postgresql", "mysql")
            for password in ("secret%zz", "secret%", "secret%00", "secret/x", "secret?x", "secret#x")
        ),
        ({"url": "mysql://h:x/d"}, "it must have a host, a number as its port, and a database"),
        ({"url": "sqlite://"}, "url has no path"),
        ({"table": None}, "table or query is missing"),
        ({"query": "SELECT :x"}, "a source has no value for :x"),
        ({"query": "SELECT :cursor"}, "cursor is missing"),
        ({"mode": "upsert"}, "key is missing"),
        ({"table": None, "query": "SELECT 1", "cursor": "id"}, "query must contain :cursor"),
        ({"table": "a..b"}, "table is 'a..b'"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    with pytest.raises(FlowFileError) as caught:
        flow.connector("db", "sql", **{"url": "sqlite:///x.db", "table": "t", **options})
    assert text in str(caught.value)
    assert "p@ss" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["[::1]:5432", "a:5432,b:5433", ""])
def test_hosts_of_postgresql(host: str) -> None:
    assert parsed(f"postgresql://u:p%40ss@{host}/d?sslmode=verify-full")[0] == "postgresql"


def test_check_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRIVERS, "postgresql", "no_such_driver")
    text = """
flows:
  f:
    connectors:
      in: {type: sql, url: "postgresql://h/d", query: "SELECT 1"}
      out: {type: sql, url: "postgresql://h/d", table: t}
    connect: [in -> out]
"""
    with pytest.raises(FlowFileError) as caught:
        read_text(text)
    assert str(caught.value).count("pip install 'tidelog[flows-sql]'") == 2


def test_parameters_are_found_where_sql_has_them() -> None:
    text = """SELECT ':a', "b:c", x::int, $$:d$$, $t$:e$t$, E'\\':f', a[1:2] /* :g */ -- :h
    FROM t WHERE i = :i AND j = :k.l AND m = :i"""
    made = Statement(text, Dialect('"', "${n}"))
    assert made.names == ["i", "k.l"]
    assert made.sql.endswith("i = $1 AND j = $2 AND m = $1")
    made = Statement("SELECT 'it\\'s :a', '%' WHERE `b:c` = :d AND e = :d", Dialect("`", "%s", backslashes=True))
    assert (made.names, made.sql) == (["d", "d"], "SELECT 'it\\'s :a', '%%' WHERE `b:c` = %s AND e = %s")


def test_values_of_columns_are_plain() -> None:
    from datetime import UTC, date, datetime, timedelta
    from decimal import Decimal
    from uuid import UUID

    assert plain(Decimal("12.10")) == 12.1
    assert plain(Decimal(12)) == 12
    assert plain(Decimal("0.12345678901234567890123")) == "0.12345678901234567890123"
    assert plain(Decimal("NaN")) == "NaN"
    assert plain([date(2026, 1, 2), timedelta(minutes=1)]) == ["2026-01-02", 60.0]
    assert plain({"at": datetime(2026, 1, 2, tzinfo=UTC)}) == {"at": "2026-01-02T00:00:00+00:00"}
    assert plain(UUID(int=1)) == "00000000-0000-0000-0000-000000000001"
    assert plain(memoryview(b"x")) == b"x"


@in_loop
async def test_types_of_postgresql(peers: SqlPeers, tmp_path: Path) -> None:
    database = peers.get("postgres")
    database.run("DROP TABLE IF EXISTS kinds")
    columns = "id int, t timestamptz, d date, u uuid, j jsonb, a int[], b bool, n numeric, x bytea, s text, p inet"
    database.run(f"CREATE TABLE kinds ({columns})")
    value = {
        "id": 1, "t": "2026-01-02T03:04:05Z", "d": "infinity", "u": "00000000-0000-0000-0000-000000000001",
        "j": {"k": [1]}, "a": "{1,2}", "b": True, "n": "1.5", "x": b"\x00", "s": 7, "p": "10.0.0.1",
    }  # fmt: skip
    flow, source = sink(database, table="kinds")
    async with running(flow):
        source.give(*events(value, value | {"s": {"k": 1}, "t": None}, value | {"id": "x"}))
        await until(lambda: len(source.outcomes) == 3)
    assert [source.outcomes[number][0] for number in range(3)] == ["ok", "ok", "reject"]
    flow, out = reading(database, tmp_path, query="SELECT * FROM kinds WHERE id > :cursor ORDER BY id")
    async with running(flow):
        await until(lambda: len(out.values) == 2)
    assert out.values[0] == value | {
        "t": "2026-01-02T03:04:05+00:00", "a": [1, 2], "n": 1.5, "s": "7"
    }  # fmt: skip
    assert out.values[1]["s"] == '{"k":1}'


@in_loop
async def test_changes_need_a_server_with_logical_replication(peers: SqlPeers) -> None:
    flow = Flow("changes")
    options = {"url": peers.get("postgres").url, "slot": "s", "tables": ["orders"], "create": True}
    flow.connector("in", "postgres_cdc", reconnect="none", **options)
    flow.connector("out", "null")
    flow.connect("in -> out")
    one = RunningFlow(flow.spec(), FlowContext("changes"))
    await one.start()
    await until(lambda: one.graph.connections["in"].failed)
    assert "ALTER SYSTEM SET wal_level = 'logical'" in one.graph.connections["in"].error
    await one.stop()


# -- the example ---------------------------------------------------------------------------------------------
@in_loop
async def test_the_example_copies_orders_from_one_database_to_another(peers: SqlPeers, tmp_path: Path) -> None:
    shop, archive = emptied(peers.get("sqlite")), emptied(peers.get("postgres"))
    archive.run("DROP TABLE IF EXISTS customers")
    archive.run("CREATE TABLE customers (id INT, name TEXT)")
    archive.run("INSERT INTO customers VALUES (7, 'Ada')")
    shop.run("DROP TABLE IF EXISTS customer_orders")
    shop.run("CREATE TABLE customer_orders (id INTEGER PRIMARY KEY, customer_id INT, amount NUMERIC)")
    shop.run("INSERT INTO customer_orders VALUES (1, 7, 12.5), (2, 8, -1)")
    given = {"SHOP": shop.url, "ARCHIVE": archive.url, "POSITION": str(tmp_path / "position")}
    spec = read_text(EXAMPLE.read_text(), variables=given).flows["archive"]
    one = RunningFlow(spec, FlowContext("archive"))
    await one.start()
    await until(lambda: orders(archive))
    assert orders(archive) == [(1, "Ada", 12.5)]
    await one.stop()
