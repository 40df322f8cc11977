"""scripts/demo --cluster, with clicks that are made here: it ends with status 1 if a promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[jobs]')")
pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'tidelog[demo]')")

from examples.jobs_clicks import Click
from scripts import demo_cluster
from scripts.demo_clusterplot import Poll, appends, runs
from tests.test_demo_jobs import made
from tests.tidelog.spark.sparkkit import require_spark
from tidelog.testing import running_server
from tidelog.topics import Topic


@pytest.mark.slow
@pytest.mark.timeout(400)  # a JVM that begins cold, and three commands that move slots
def test_the_demo_keeps_its_promises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    monkeypatch.setenv("TIDELOG_URL", "")  # it is set by the demo, and undone here
    picture = tmp_path / "cluster.png"
    demo_cluster.play(made(1500), seconds=3.0, picture=picture)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 5
    assert "the sum is 1,500" in printed
    assert "moved 8,192 slots from group 2 to group 1" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "fields", "broken"),
    [
        ("all-clicks:1", {"user": "user-0", "city": "Oslo"}, "clicks are in the topic, each once"),
        ("all-totals:1", {"user": "user-0", "city": "Seattle", "clicks": 1}, "no total was published twice"),
        ("visits:user-0", {"city": "Seattle", "at": "2010-01-01T00:00:00+00:00"}, "each click is there once"),
    ],
)
def test_what_is_there_twice_is_a_broken_promise(
    capsys: pytest.CaptureFixture[str], key: str, fields: dict[str, str | int], broken: str
) -> None:
    clicks = made(1)
    owners = [{"1", "2"}, {"2"}, {"1", "2"}]
    with running_server() as server, server.client() as client:
        topic: Topic[Click] = Topic("all-clicks", Click, partition_by="user", partitions=8, url=server.url)
        topic.sync.send_many(clicks)
        topic.close_sync()
        client.tappend("all-totals:0", {"user": clicks[0].user, "city": clicks[0].city, "clicks": 1})
        client.tappend("visits:user-0", {"city": clicks[0].city, "at": clicks[0].at.isoformat()})
        demo_cluster.reckon(client, clicks, owners)
        assert capsys.readouterr().out.count("✓") == 5
        client.tappend(key, fields)
        with pytest.raises(SystemExit):
            demo_cluster.reckon(client, clicks, owners)
        assert broken in capsys.readouterr().out.rpartition("✗ NOT TRUE: ")[2]
        with pytest.raises(SystemExit):
            demo_cluster.reckon(client, clicks, owners[:1])


def test_the_picture() -> None:
    def poll(at: float, *owners: str) -> Poll:
        return Poll(at, 0, 0, 0, owners, ready=True, unread=0)

    polls = [poll(10.0, "1", "2"), poll(11.0, "2", "2"), poll(12.0, "2", "1")]
    times = [(10.1, 0), (10.2, 1), (11.0, 0), (12.5, 1)]
    assert appends(times, polls, 10.0, 6) == {"1": [1, 0, 0, 0, 0, 1], "2": [1, 0, 1, 0, 0, 0]}
    assert list(runs(polls, 0, 10.0)) == [(0.0, 1.0, "1"), (1.0, 1.0, "2")]
    assert list(runs(polls, 1, 10.0)) == [(0.0, 2.0, "2"), (2.0, 0.0, "1")]
