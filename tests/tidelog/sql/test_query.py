"""SQL over streams and topics: the same rows as DuckDB finds in a table, and no more is read than the filters need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

duckdb = pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")

from hypothesis import HealthCheck, given, settings  # noqa: E402 - after the skip
from hypothesis import strategies as st  # noqa: E402

from tidelog import Client  # noqa: E402
from tidelog.arrow.columns import MalformedError  # noqa: E402
from tidelog.arrow.rows import to_arrow  # noqa: E402
from tidelog.sql.names import SqlError, tables_of  # noqa: E402
from tidelog.sql.query import SqlSession  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic  # noqa: E402

pytestmark = pytest.mark.quick

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 1000


@pytest.fixture
def read() -> list[int]:
    """The number of rows of each batch that a query has read."""
    return []


@pytest.fixture
def session(client: Client, tidelog_server: Server, read: list[int]) -> Iterator[SqlSession]:
    """A session over a stream ``hours`` with an entry for each hour, and a topic."""
    start = int(FIRST.timestamp() * 1000)
    pipeline = client.redis.pipeline(transaction=False)
    for hour in range(HOURS):
        pipeline.xadd("hours", {"hour": hour, "city": f"c{hour % 7}"}, id=f"{start + hour * 3_600_000}-0")
    pipeline.execute()
    kind = dict[str, int]
    topic = Topic[kind]("shop:orders", kind, partition_by="no", partitions=4, url=tidelog_server.url)
    topic.sync.send_many({"no": number} for number in range(100))
    topic.sync.close()
    with SqlSession(tidelog_server.url, read=read.append) as session:
        yield session


def rows(session: SqlSession, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in session.run(query).to_table().to_pylist()]


def test_aggregates(session: SqlSession) -> None:
    found = rows(session, "select city, count(*), avg(hour) from hours where hour < 14 group by 1 order by 1")
    assert found == [(f"c{number}", 2, number + 3.5) for number in range(7)]


def test_a_topic_is_a_table(session: SqlSession) -> None:
    assert rows(session, 'select count(*), sum(no), count(distinct _partition) from "shop:orders"') == [(100, 4950, 4)]


def test_joins_with_streams_and_files(session: SqlSession, tmp_path: Path) -> None:
    cities = tmp_path / "cities.csv"
    cities.write_text("city,name\nc1,Oslo\n")
    joined = f"hours join '{cities}' using (city) join \"shop:orders\" on no = hour"
    query = f"select name, count(*) from {joined} group by 1"
    assert rows(session, query) == [("Oslo", 15)]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("_ts >= timestamptz '2026-01-02' and _ts < timestamptz '2026-01-03'", 24),
        ("_ts between '2026-01-02 00:00:00+00' and '2026-01-02 12:00:00+00'", 13),
        ("_ts > timestamptz '2026-01-01' + interval 996 hour", 3),
        ("_ts > now() + interval 100 year", 0),
        ("_ts = timestamptz '2026-01-01 05:00:00'", 1),
        ("not (_ts > timestamptz '2026-01-01 03:00:00')", 4),
        ("_ts < timestamptz '2026-01-01 02:00:00' and city = 'c1'", 1),
        ("_key = 'other'", 0),
        ("_ts is null", 0),
    ],
)
def test_no_more_is_read_than_the_filters_need(
    session: SqlSession, read: list[int], condition: str, expected: int
) -> None:
    assert rows(session, f"select count(*) from hours where {condition}") == [(expected,)]
    assert sum(read) <= expected + 2


def test_only_partitions_that_the_filters_need_are_read(session: SqlSession, read: list[int]) -> None:
    ((expected,),) = rows(session, 'select count(*) from "shop:orders" where _partition = 2')
    assert sum(read) == expected
    assert expected


MOMENTS = st.integers(-2, HOURS + 2).map(lambda hour: f"timestamptz '{FIRST + timedelta(hours=hour, minutes=7)}'")
SIGNS = st.sampled_from(("<", "<=", ">", ">=", "=", "<>"))
TIMES = st.tuples(SIGNS, MOMENTS).map(lambda found: "_ts {} {}".format(*found))
CONDITIONS = st.recursive(
    st.one_of(
        TIMES, TIMES, st.just("_ts is not null"), st.just("city in ('c1', 'c2')"), st.just("hour > 500"),
        st.just("_key = 'hours'"), st.just("_key <> 'hours'"), st.just("_id >= '1767'"),
        st.tuples(MOMENTS, MOMENTS).map(lambda found: "_ts between {} and {}".format(*found)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(("and", "or")), inner).map(lambda found: "({} {} {})".format(*found)),
        inner.map(lambda found: f"not ({found})"),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONDITIONS)
def test_random_filters_find_the_rows_that_they_find_in_a_table(
    session: SqlSession, tidelog_server: Server, condition: str
) -> None:
    query = "select hour from {} where {} order by 1"
    session.connection.register("copied", to_arrow(tidelog_server.url, "hours").to_table())
    expected = session.connection.sql(query.format("copied", condition)).fetchall()
    assert rows(session, query.format("hours", condition)) == expected


def test_times_beyond_the_range_of_a_timestamp(session: SqlSession, client: Client, read: list[int]) -> None:
    client.redis.xadd("far", {"n": 1}, id="5-0")
    client.redis.xadd("far", {"n": 2}, id=f"{2**63 // 1000 + 5}-0")
    client.redis.xadd("far", {"n": 3}, id=f"{2**64 - 1}-0")
    assert rows(session, "select n from far where _ts is null order by 1") == [(2,), (3,)]
    assert rows(session, "select n from far where _ts is not null") == [(1,)]
    assert rows(session, "select n from far where _ts < timestamptz '1980-01-01' or _ts is null order by 1") == [
        (1,), (2,), (3,),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select * from nothing", "there is no stream, topic, or file 'nothing'"),
        ("selec 1", "syntax error"),
        ("select wrong from hours", '"wrong" (does )?not'),
        ("drop table hours", "only SELECT is possible, not DROP"),
        ("insert into hours values (1)", "only SELECT is possible, not INSERT"),
        ("select 1; select 2", "not 2 statements"),
        ("", "not 0 statements"),
    ],
)
def test_invalid_queries(session: SqlSession, query: str, expected: str) -> None:
    with pytest.raises(SqlError, match=expected):
        session.run(query)


def test_an_error_while_the_rows_are_fetched(session: SqlSession) -> None:
    with pytest.raises(SqlError, match="Could not convert string 'c0'"):
        session.run("select city::int from hours").to_table()


def test_a_value_of_another_type(client: Client, tidelog_server: Server) -> None:
    client.tmappend("s", ["n"], [(number,) for number in range(500)])
    client.tappend("s", {"n": "many"})
    client.tmappend("s", ["n"], [(number,) for number in range(500)])
    with SqlSession(tidelog_server.url) as session, pytest.raises(MalformedError, match="field 'n' is b'many'"):
        session.run("select sum(n) from s").to_table()
    with SqlSession(tidelog_server.url, {"n": "string"}) as session:
        assert rows(session, "select sum(try_cast(n as int)) from s") == [(2 * 499 * 250,)]
    with SqlSession(tidelog_server.url, {"s.n": "string", "t.n": "double"}) as session:
        assert rows(session, "select max(n) from s") == [("many",)]


def test_the_tables_of_a_query() -> None:
    with duckdb.connect() as connection:
        query = 'with a as (select * from b) select * from a, "c:1" where x in (select y from d) union select 1 from e'
        assert tables_of(connection, query) == {"b", "c:1", "d", "e"}
        assert tables_of(connection, "select 1") == set()


def test_files_are_complete_or_missing(session: SqlSession, tmp_path: Path) -> None:
    for name in ("hours.parquet", "hours.csv"):
        session.run("select _ts, hour from hours").write(tmp_path / name)
        ((count, last),) = duckdb.sql(f"select count(*), max(hour) from '{tmp_path / name}'").fetchall()
        assert (count, last) == (1000, 999)
    with pytest.raises(SqlError):
        session.run("select (city || 'x')::int from hours").write(tmp_path / "failed.csv")
    with pytest.raises(ValueError, match=r"must end with \.parquet or \.csv"):
        session.run("select 1").write(tmp_path / "rows.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hours.csv", "hours.parquet"]


def test_json_of_rows(session: SqlSession) -> None:
    (text,) = rows(session, "select to_json(hours) from hours limit 1")
    assert json.loads(str(text[0]))["hour"] == 0
