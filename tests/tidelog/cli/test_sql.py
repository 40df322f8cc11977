"""``tidelog sql`` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")

from tidelog import Client
from tidelog.cli.program import main
from tidelog.testing import Server

pytestmark = pytest.mark.quick


Run = Callable[..., Result]


@pytest.fixture
def sql(client: Client, tidelog_server: Server) -> Run:
    """Run the command over a stream."""
    client.redis.xadd("weather", {"city": "Oslo", "celsius": "-3.5"}, id="1767225600000-0")
    client.redis.xadd("weather", {"city": "Catania", "celsius": "31"}, id="1767225600250-0")

    def run(*words: str, given: str = "") -> Result:
        return CliRunner().invoke(main, ["sql", "--url", tidelog_server.url, *words], input=given)

    return run


def test_a_table(sql: Run) -> None:
    done = sql("select city, _ts, celsius, null as nothing from weather order by celsius")
    assert (done.stderr, done.exit_code) == ("", 0)
    assert done.stdout.splitlines() == [
        "city     _ts                         celsius  nothing",
        "Oslo     2026-01-01 00:00:00         -3.5",
        "Catania  2026-01-01 00:00:00.250000  31",
    ]


def test_json(sql: Run) -> None:
    done = sql("--json", "-", given="select *, [1, 2] as list, blob '\\xAA' as raw from weather order by _id limit 1")
    assert json.loads(done.stdout) == {
        "_key": "weather", "_id": "1767225600000.0", "_ts": "2026-01-01T00:00:00+00:00", "city": "Oslo",
        "celsius": -3.5, "list": [1, 2], "raw": "\\xaa",
    }  # fmt: skip


def test_a_file(sql: Run, tmp_path: Path) -> None:
    target = tmp_path / "weather.csv"
    assert sql("select city from weather order by 1", "--to", str(target)).exit_code == 0
    assert target.read_text().split() == ["city", "Catania", "Oslo"]


def test_long_results_are_cut(sql: Run) -> None:
    done = sql("select range as n, repeat('x', 100) as text from range(1200)")
    assert len(done.stdout.splitlines()) == 1001
    assert "only the first 1,000 rows are shown" in done.stderr
    assert done.stdout.splitlines()[1] == f"0    {'x' * 59}…"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("select * from nothing",), "Error: there is no stream, topic, or file 'nothing'"),
        (("select 1", "--to", "rows.txt"), "must end with .parquet or .csv"),
        (("select 1", "--json", "--to", "rows.csv"), "use one of them"),
        (("select 1", "--type", "n"), "--type n: write FIELD=TYPE"),
        (("select * from weather", "--type", "celsius=number"), "'number' is not a type"),
        (("select sum(celsius) from weather", "--type", "city=int"), ""),
        (("select city from weather", "--type", "city=int"), "which is no int64: use --type FIELD=string for"),
        (("select * from weather", "--url", "redis://127.0.0.1:1?socket_timeout=1"), "no answer from"),
        (("select 1", "--url", "http://x"), "redis://"),
    ],
)
def test_errors_name_the_remedy(sql: Run, words: tuple[str, ...], expected: str) -> None:
    done = sql(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert expected in done.stderr
    assert done.exit_code == (0 if not expected else 2 if "use one of them" in expected else 1)
