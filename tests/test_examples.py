"""Each program in examples/ runs as its docstring says: from the command line, on data of ours, against a server."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.tidelog.spark.sparkkit import require_spark
from tidelog import Client
from tidelog.testing import Server, running_server

EXAMPLES = Path(__file__).parent.parent / "examples"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
LATE = timedelta(days=2)  # the watermark of the example
FIRST = datetime(2010, 1, 1, tzinfo=UTC)
SECONDS = 2000  # ms of a window of the other job


def run(server: Server, *command: str) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(EXAMPLES.parent),
        "TIDELOG_URL": server.url,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts in half the time
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_weeks(client: Client, temps: dict[datetime, float]) -> None:
    """All weeks that are over are there once, with the figures that plain Python finds."""
    by_week: dict[datetime, list[float]] = {}
    for at, temp in temps.items():
        by_week.setdefault(EPOCH + (at - EPOCH) // WEEK * WEEK, []).append(temp)
    over = {week: values for week, values in by_week.items() if week + WEEK <= max(temps) - LATE}
    rows = [entry.text() for entry in client.trange("sf_temps:weeks")]
    assert sorted(datetime.fromisoformat(row["week"]) for row in rows) == sorted(over) != []
    for row in rows:
        values = over[datetime.fromisoformat(row["week"])]
        assert [float(row["low"]), float(row["high"])] == pytest.approx([min(values), max(values)])
        assert float(row["mean"]) == pytest.approx(sum(values) / len(values), abs=0.006)
        assert int(row["rows"]) == len(values)


def check_seconds(client: Client) -> None:
    """Some windows are there, each once, with all entries of their two seconds."""
    counted = Counter(entry.id.ms // SECONDS * SECONDS for entry in client.trange("machine"))
    rows = [entry.text() for entry in client.trange("machine:seconds")]
    found = {round(datetime.fromisoformat(row["at"]).timestamp() * 1000): int(row["rows"]) for row in rows}
    assert len(found) == len(rows) > 0
    assert found == {at: counted[at] for at in found}


@pytest.mark.slow
@pytest.mark.timeout(300)  # a JVM that begins cold
def test_windows(tmp_path: Path) -> None:
    """Of temperatures of ours, and of a machine's load, which it measures itself."""
    require_spark()
    temps = {FIRST + timedelta(hours=hour): 50 + 10 * math.sin(hour / 24) + hour % 7 for hour in range(2500)}
    file = tmp_path / "sf-temps.csv"
    file.write_text("temp,date\n" + "".join(f"{temp!r},{at:%Y/%m/%d %H:%M:%S}\n" for at, temp in temps.items()))
    with running_server() as server, server.client() as client:
        run(server, "-m", "tidelog.cli", "load", "sf_temps", str(file))
        run(server, str(EXAMPLES / "spark_windows.py"), server.url, str(tmp_path / "checkpoints"))
        check_weeks(client, temps)
        check_seconds(client)


def test_temperatures_that_it_makes() -> None:
    pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")
    from examples import spark_windows

    with running_server() as server, server.client() as client:
        client.tappend("machine", {"cpu": 1, "memory": 0})  # or it would measure for 8 s
        for _ in range(2):
            spark_windows.fill(server.url)
            rows = [entry.text() for entry in client.trange("sf_temps")]
            at = [datetime.strptime(row["date"], "%Y/%m/%d %H:%M:%S").replace(tzinfo=UTC) for row in rows]
            assert at == [FIRST + timedelta(hours=hour) for hour in range(365 * 24)]
            assert all(40 < float(row["temp"]) < 70 for row in rows)
        assert client.tlen("machine") == 1


def test_every_example_is_run_here() -> None:
    elsewhere = {
        "workers_readings.py",  # by tests/test_readme.py and tests/test_demo_workers.py
        "cluster_clicks.py",  # by tests/test_demo_cluster.py
        "jobs_clicks.py",  # by tests/tidelog/jobs/test_clicks.py
        "gateway_chat.py",  # by tests/tidelog/gateway/test_gateway_example.py
    }
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.iterdir() if path.suffix and path.name not in elsewhere)
