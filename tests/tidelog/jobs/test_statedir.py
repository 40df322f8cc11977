"""The folder of states may differ from machine to machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tidelog.jobs.taskkit import Bench
from tidelog.cli.engine import _make, engine
from tidelog.jobs import MicroBatch, State, job
from tidelog.jobs.store import StoreError
from tidelog.jobs.store.statedir import expanded
from tidelog.testing import Server
from tidelog.topics import Topic

ticks: Topic[dict[str, str]] = Topic("ticks", dict, partitions=1)


@job(inputs=[ticks], state=int)
def total(batch: MicroBatch, state: State[int]) -> None:
    (before,) = state.get_many(["all"])
    state.put_many(["all"], [(before or 0) + len(batch)])


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("/var/lib/jobs", "/var/lib/jobs"),
        ("$DISK/jobs", "/disk1/jobs"),
        ("${DISK}/$USER_1.x/${DISK}", "/disk1/ann.x//disk1"),
        ("/a$/b", "/a$/b"),
        ("jobs", "jobs"),
    ],
)
def test_variables_of_the_machine_are_put_in(text: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISK", "/disk1")
    monkeypatch.setenv("USER_1", "ann")
    assert expanded(text) == folder


@pytest.mark.parametrize("value", [None, ""])
def test_one_that_is_not_set_is_an_error(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISK", raising=False)
    if value is not None:
        monkeypatch.setenv("DISK", value)
    with pytest.raises(StoreError, match="needs the environment variable DISK, and DISK is not set on"):
        expanded("/x/${DISK}/jobs")


def test_a_task_puts_them_in_where_it_runs(
    tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tidelog_server, Path("${DISK}/jobs"), total, 1)
    ticks.sync.send({"n": "1"})
    assert "DISK is not set" in bench.failed("")  # it may be, where the task is tried again
    for number, name in enumerate(("one", "two"), 1):
        monkeypatch.setenv("DISK", str(tmp_path / name))
        bench.epoch()
        bench.folder = tmp_path / name / "jobs"
        assert bench.version() == (number, bench.run)
        assert bench.state() == {b"all": 1}
        bench.folder = Path("${DISK}/jobs")


@pytest.mark.parametrize(
    ("master", "folder", "said"),
    [
        ("local[2]", "${DISK}/jobs", "needs the environment variable DISK"),
        ("spark://127.0.0.1:1", "jobs", "jobs would be in a working directory that Spark deletes"),
        ("local-cluster[2,1,1024]", "./jobs", "use an absolute path"),
    ],
)
def test_an_engine_checks_it(master: str, folder: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISK", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/java")
    result = CliRunner().invoke(engine, ["--master", master, "--state-dir", folder])
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_a_local_engine_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISK", str(tmp_path))
    _make("${DISK}/jobs")
    assert (tmp_path / "jobs").is_dir()
