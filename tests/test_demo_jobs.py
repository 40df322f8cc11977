"""scripts/demo --jobs, with clicks that are made here: it ends with status 1 if a promise is broken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'tidelog[demo]')")

from examples.jobs_clicks import Click
from scripts import demo_jobs
from scripts.demo_jobs import Epoch
from tests.tidelog.spark.sparkkit import require_spark
from tidelog.testing import running_server

FIRST = datetime(2010, 1, 1, tzinfo=UTC)
CITIES = ("Seattle", "San Francisco")


def made(number: int) -> list[Click]:
    return [
        Click(f"user-{at * at % 11}", CITIES[at % 3 % 2], FIRST + timedelta(hours=at / 2), 50.0) for at in range(number)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)  # two JVMs that begin cold
def test_the_demo_keeps_its_promises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    monkeypatch.setenv("TIDELOG_URL", "")  # it is set by the demo, and undone here
    picture = tmp_path / "jobs.png"
    demo_jobs.play(made(4000), seconds=10.0, picture=picture)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 5
    assert "the sum is 4,000" in printed
    assert "kill -9 of engine-A" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_total_that_was_put_out_twice_is_a_broken_promise(capsys: pytest.CaptureFixture[str]) -> None:
    clicks = [Click("ann", "Oslo", FIRST, 50.0), Click("ann", "Oslo", FIRST, 50.0)]
    epochs = {"count": [Epoch(1, 1000, 1, "engine-A"), Epoch(2, 3000, 1, "engine-B")], "lead": []}
    with running_server() as server, server.client() as client:
        client.tappend("leaders:0", {"city": "Oslo", "user": "ann", "clicks": 1})
        for number in (1, 2):
            client.tappend("city-totals:0", {"user": "ann", "city": "Oslo", "clicks": number})
        demo_jobs.reckon(client, clicks, epochs, 2000)
        assert capsys.readouterr().out.count("✓") == 5
        client.tappend("city-totals:0", {"user": "ann", "city": "Oslo", "clicks": 2})
        with pytest.raises(SystemExit):
            demo_jobs.reckon(client, clicks, epochs, 2000)
    assert "✗ NOT TRUE: the totals are exact" in capsys.readouterr().out
