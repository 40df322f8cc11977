"""``to_arrow``: the rows of streams and topics, complete and with the right types, also through lost connections."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[arrow]')")

import msgspec  # noqa: E402 - after the skip
import redis  # noqa: E402

from tests.replication.proxy import Proxy  # noqa: E402
from tidelog import Access, Client, calls  # noqa: E402
from tidelog.arrow.columns import MalformedError  # noqa: E402
from tidelog.arrow.rows import EvictedError, NoSuchStreamError, to_arrow  # noqa: E402
from tidelog.client.calls import IdLike  # noqa: E402
from tidelog.testing import Server, free_port  # noqa: E402
from tidelog.topics import Topic  # noqa: E402
from tidelog.transport.errors import ReplyError  # noqa: E402

pytestmark = pytest.mark.quick


class Order(msgspec.Struct):
    id: int
    customer: str
    total: float
    day: date
    at: datetime
    paid: bool = False


def test_a_stream_has_its_fields_as_columns(client: Client, tidelog_server: Server) -> None:
    ids = [
        client.tappend("weather", {"city": "Oslo", "celsius": "-3.5", "day": "2026-01-31", "no": 7}),
        client.tappend("weather", {"city": "Catania", "celsius": "31", "seen": "2026-02-01T10:00:00Z", "code": "01"}),
    ]
    found = client.to_arrow("weather").to_table()
    assert found.schema == pa.schema([
        ("_key", pa.string()), ("_id", pa.string()), ("_ts", pa.timestamp("us", "UTC")), ("city", pa.string()),
        ("celsius", pa.float64()), ("seen", pa.timestamp("us", "UTC")), ("code", pa.string()), ("day", pa.date32()),
        ("no", pa.int64()),
    ])  # fmt: skip
    assert found.to_pylist() == [
        {
            "_key": "weather", "_id": str(ids[0]), "_ts": ids[0].time, "city": "Oslo", "celsius": -3.5, "seen": None,
            "code": None, "day": date(2026, 1, 31), "no": 7,
        },
        {
            "_key": "weather", "_id": str(ids[1]), "_ts": ids[1].time, "city": "Catania", "celsius": 31.0,
            "seen": datetime(2026, 2, 1, 10, tzinfo=UTC), "code": "01", "day": None, "no": None,
        },
    ]  # fmt: skip


def test_a_topic_has_the_types_of_its_settings(client: Client, tidelog_server: Server) -> None:
    topic = Topic[Order]("orders", Order, partition_by="customer", partitions=4, url=tidelog_server.url)
    day, at = date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)
    topic.sync.send_many(Order(number, f"c{number}", number / 4, day, at) for number in range(10))
    topic.sync.close()
    found = client.to_arrow("orders").to_table()
    assert [(field.name, str(field.type)) for field in found.schema][3:] == [
        ("_partition", "int32"), ("id", "int64"), ("customer", "string"), ("total", "double"), ("day", "date32[day]"),
        ("at", "timestamp[us, tz=UTC]"), ("paid", "bool"),
    ]  # fmt: skip
    assert sorted(found["id"].to_pylist()) == list(range(10))
    assert {f"orders:{number}" for number in found["_partition"].to_pylist()} == set(found["_key"].to_pylist())


def test_bounds_are_ids_or_times(client: Client) -> None:
    for ms in (1000, 2000, 3000):
        client.redis.xadd("s", {"n": ms}, id=f"{ms}-0")

    def numbers(*bounds: IdLike) -> list[int]:
        return list(client.to_arrow("s", *bounds).to_table()["n"].to_pylist())

    assert numbers() == [1000, 2000, 3000]
    assert numbers("2000.0") == [2000, 3000]
    assert numbers("(2000.0") == [3000]
    assert numbers("-", 2000) == [1000, 2000]
    assert numbers(datetime.fromtimestamp(2, UTC), datetime.fromtimestamp(2.5, UTC)) == [2000]
    assert numbers(4000) == []
    with pytest.raises(ValueError, match="zone"):
        client.to_arrow("s", datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_a_schema_replaces_types_and_adds_fields(client: Client, tidelog_server: Server) -> None:
    client.tappend("s", {"n": "1", "price": "1.005"})
    found = client.to_arrow("s", schema={"price": "decimal(9,2)", "n": pa.string(), "later": "long"}).to_table()
    assert str(found.schema.field("price").type) == "decimal128(9, 2)"
    assert (found["n"].to_pylist(), found["later"].to_pylist()) == (["1"], [None])
    exact = pa.schema([("n", pa.int16()), ("fields", pa.map_(pa.string(), pa.binary()))])
    assert to_arrow(tidelog_server.url, "s", schema=exact).to_table().to_pylist() == [
        {"n": 1, "fields": [("n", b"1"), ("price", b"1.005")]}
    ]
    with pytest.raises(ValueError, match="'number' is not a type; the types are int, "):
        client.to_arrow("s", schema={"n": "number"})
    with pytest.raises(ValueError, match="_id always is string"):
        client.to_arrow("s", schema={"_id": "int"})


def test_a_value_of_another_type_is_an_error_with_the_remedy(client: Client) -> None:
    client.tmappend("s", ["n"], [(number,) for number in range(1000)])
    client.tappend("s", {"n": "unknown"})
    client.tmappend("s", ["n"], [(number,) for number in range(1000)])
    with pytest.raises(MalformedError, match=r"'n' is b'unknown', which is no int64 \(pass .*schema={'n': 'string'}"):
        client.to_arrow("s").to_table()
    assert client.to_arrow("s", schema={"n": "string"}).to_table().num_rows == 2001
    corrupt = pa.schema([("n", pa.int64()), ("_corrupt", pa.string())])
    found = client.to_arrow("s", schema=corrupt).to_table()
    assert [each for each in found["_corrupt"].to_pylist() if each] == ['{"n": "unknown"}']


def test_values_that_are_not_utf8_are_binary(client: Client) -> None:
    client.tappend("s", {"raw": b"\xff", b"name\xfe": "x"})
    found = client.to_arrow("s").to_table()
    assert found.select(["raw", "name\\xfe"]).to_pylist() == [{"raw": b"\xff", "name\\xfe": "x"}]


def test_a_field_with_the_name_of_an_own_column_is_left_out(client: Client) -> None:
    client.tappend("s", {"_id": "mine", "fields": "x", "n": 1})
    assert client.to_arrow("s").to_table().column_names == ["_key", "_id", "_ts", "n"]


def test_other_programs_read_the_rows(client: Client) -> None:
    polars = pytest.importorskip("polars", reason="no polars here (pip install polars)")
    client.tmappend("s", ["n"], [(number,) for number in range(25_000)])
    rows = client.to_arrow("s")
    assert [batch.num_rows for batch in rows] == [10_000, 10_000, 5_000]
    assert rows.to_pandas()["n"].sum() == rows.to_polars()["n"].sum() == sum(range(25_000))
    assert polars.DataFrame(rows)["n"].to_list() == list(range(25_000))
    assert pa.table(rows).num_rows == pa.RecordBatchReader.from_stream(rows).read_all().num_rows == 25_000


def test_later_entries_are_not_included(client: Client) -> None:
    client.tmappend("s", ["n"], [(number,) for number in range(20_000)])
    rows = client.to_arrow("s")
    seen = 0
    for batch in rows:
        seen += batch.num_rows
        client.tappend("s", {"n": -1})
    assert seen == 20_000
    assert rows.to_table().num_rows == 20_002


def test_unknown_names_and_other_keys(client: Client, tidelog_server: Server) -> None:
    with pytest.raises(NoSuchStreamError, match="no stream and no topic 'nothing'"):
        client.to_arrow("nothing")
    client.redis.set("text", "x")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        client.to_arrow("text")
    client.tappend("s", {"n": 1})
    client.redis.xtrim("s", maxlen=0)
    assert client.to_arrow("s").to_table().num_rows == 0


def test_clients_that_can_not_be_copied(tidelog_server: Server) -> None:
    with redis.Redis.from_url(tidelog_server.url) as base, pytest.raises(ValueError, match="URL or an Access"):
        Client.over(base).to_arrow("s")


def test_user_and_password_are_those_of_the_client(tidelog_server: Server) -> None:
    with tidelog_server.client() as admin:
        admin.redis.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~s", "+@all")
        admin.tappend("s", {"n": 1})
        admin.tappend("t", {"n": 1})
    with Client(tidelog_server.url, username="ann", password="secret") as client:
        assert client.to_arrow("s").to_table().num_rows == 1
        with pytest.raises(ReplyError, match="NOPERM"):
            client.to_arrow("t")


@pytest.fixture
def cut(tidelog_server: Server) -> Iterator[tuple[Access, Proxy]]:
    """An access through a proxy."""
    with Proxy(free_port(), int(tidelog_server.url.rpartition(":")[2])) as proxy:
        yield Access((f"redis://127.0.0.1:{proxy.port}",), retries=5, retry_ms=20), proxy


def test_a_lost_connection_loses_and_repeats_nothing(client: Client, cut: tuple[Access, Proxy]) -> None:
    access, proxy = cut
    client.tmappend("s", ["n"], [(number,) for number in range(200_000)])
    found: list[int] = []
    for number, batch in enumerate(to_arrow(access, "s")):
        found += batch["n"].to_pylist()
        if number % 5 == 0:
            proxy.cut()
    assert found == list(range(200_000))


def test_entries_that_are_evicted_during_a_lost_connection_are_an_error(
    client: Client, cut: tuple[Access, Proxy]
) -> None:
    access, proxy = cut
    client.tmappend("s", ["n", "text"], [(number, "x" * 200) for number in range(200_000)])
    batches = iter(to_arrow(access, "s"))
    next(batches)
    client.run(calls.ttrim("s", count=10))
    proxy.cut()
    with pytest.raises(EvictedError, match="were evicted while they were read"):
        for _ in batches:
            pass


def test_many_threads(client: Client) -> None:
    client.tmappend("s", ["n"], [(number,) for number in range(10_000)])
    rows, sums = client.to_arrow("s"), list[int]()
    threads = [threading.Thread(target=lambda: sums.append(sum(rows.to_table()["n"].to_pylist()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(10_000))] * 4


def test_the_client_needs_no_pyarrow() -> None:
    blocked = "import sys; sys.modules['pyarrow'] = None; import tidelog; tidelog.Client('redis://127.0.0.1:1')"
    subprocess.run([sys.executable, "-c", blocked], check=True)
