"""scripts/demo --history, with few rows. It ends with status 1 if a total is wrong, and a kill leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="no DuckDB here (pip install 'tidelog[sql]')")
pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'tidelog[demo]')")

import psutil

from scripts import demo_cleanup, demo_history
from scripts.demo_historyrows import STREAM, Reading, Rows
from tests.waiting import eventually
from tidelog.testing import running_server

FIRST = datetime(2010, 1, 1, tzinfo=UTC)
CITIES = ("San Francisco", "Seattle")


def made(number: int) -> list[Reading]:
    return [Reading(FIRST + timedelta(hours=at), CITIES[at % 2], round(40 + at % 37 / 10, 1)) for at in range(number)]


def test_rows_and_their_totals() -> None:
    rows = Rows(made(1500), 3100)
    assert (rows.stations, rows.count) == (3, 4500)
    with running_server() as server, server.client() as client:
        sizes = [(number, client.run(call))[0] for number, call in rows.calls()]
        assert sum(sizes) == client.tlen(STREAM) == 4500
        entries = [entry.text() for entry in client.trange(STREAM)]
    assert entries[3:6] == [
        {"station": str(at), "city": "Seattle", "date": f"2010-01-01 01:{20 * at:02}:00", "temp": "40.1"}
        for at in range(3)
    ]
    assert sum(total.rows for total in rows.totals()) == 4500
    for total in rows.totals():
        mine = [each for each in entries if each["city"] == total.city and each["date"][5:7] == f"{total.month:02}"]
        assert (len(mine), sum(round(float(each["temp"]) * 10) for each in mine)) == (total.rows, total.tenths)
    assert Rows(made(10), 4).count == 4


@pytest.mark.timeout(240)
def test_the_demo_without_spark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")  # it is set by the demo, and undone here
    picture = tmp_path / "history.png"
    demo_history.play(made(600), 12_000, None, picture)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 3
    assert "tidelog sql: 12,000 rows" in printed
    assert re.search(r"\n   \d+ nodes with .* have left the server's store", printed)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [picture]


def test_a_wrong_total_is_a_broken_promise(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows(made(100), 1000)
    wrong = rows.totals()
    wrong[0] = wrong[0]._replace(tenths=wrong[0].tenths + 1)
    with pytest.raises(SystemExit):
        demo_history.reckon(rows, {"Spark": rows.totals(), "tidelog sql": wrong})
    assert "✗ NOT TRUE: tidelog sql" in capsys.readouterr().out


def test_too_little_space_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    with pytest.raises(SystemExit, match=r"only 0\.0 GB are free there"):
        demo_history.announce(Rows(made(10), 1000), tmp_path)


KILLED = """
import sys, time
from pathlib import Path
from scripts.demo_cleanup import cleanup
from tidelog.testing import running_server

folder = Path(sys.argv[1])
with running_server(folder) as server, cleanup(folder, server.pid):
    print(server.pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_demo_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    root = str(Path(demo_cleanup.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not folder.exists() and not psutil.pid_exists(pid), "the server or its directory is still there")
