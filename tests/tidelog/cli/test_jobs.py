"""tidelog jobs against a real server: what changes the registry, and what is shown of jobs that run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.enginekit import change, engine, fold
from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.client.entries import StreamId
from tidelog.client.steps import run as steps
from tidelog.jobs import keys
from tidelog.jobs.registry import registry
from tidelog.jobs.replaylog.marker import InputSpan, Marker
from tidelog.testing import Server
from tidelog.topics import deadletters

Run = Callable[..., Result]
SOURCE = """
import msgspec
from tidelog.jobs import MicroBatch, job
from tidelog.topics import Topic

class Click(msgspec.Struct):
    user: str

class Total(msgspec.Struct):
    user: str
    count: int

clicks = Topic("clicks", Click, partition_by="user", partitions=4)
totals = Topic("totals", Total, partition_by="user", partitions=4)
others = Topic("others", Click, partition_by="user", partitions=2)

@job(inputs=[clicks], outputs=[totals], state=int)
def count(batch: MicroBatch, state):
    return None

@job(outputs=[clicks], partitions=1, every=5.0)
def make(batch: MicroBatch):
    return None
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the module ``clickjobs``."""
    (tmp_path / "clickjobs.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("TIDELOG_URL", tidelog_server.url)
    yield tmp_path
    for name in ("clickjobs", "other", "broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def run(folder: Path) -> Run:
    def run(*args: object, ok: bool = True, text: str | None = None) -> Result:
        result = CliRunner().invoke(main, ["jobs", *map(str, args)], input=text)
        assert (result.exit_code == 0) is ok, result.output
        return result

    return run


def looked(run: Run, *names: str) -> dict[str, Any]:
    facts = json.loads(run("status", "--json", *names).output)
    return {each["job"]["name"]: each for each in facts["jobs"]} | {"engines": facts["engines"]}


# -- add ------------------------------------------------------------------------------------------------------
def test_add_and_list(run: Run, client: Client) -> None:
    assert run("list").output == "no jobs; add one: tidelog jobs add module:job\n"
    output = run("add", "clickjobs:count").output
    assert output.startswith("count: added; reads clicks, writes totals, 4 partitions, version ")
    assert client.redis.exists("topic:clicks", "topic:totals") == 2
    assert "count: unchanged; " in run("add", "clickjobs:count").output
    output = run("add", "--all", "clickjobs").output
    assert "count: unchanged" in output
    assert "make: added; reads nothing, writes clicks, 1 partition, " in output
    spec = fold(client).specs["count"]
    assert (spec.kind, spec.inputs, spec.state, spec.target) == ("batch", ("clicks",), "int", "clickjobs:count")
    assert spec.version
    output = run("list").output
    assert output.splitlines()[0].split() == [
        "job", "kind", "function", "version", "generation", "partitions", "reads", "writes", "state",
    ]  # fmt: skip
    assert "clickjobs:make" in output


def test_new_code_goes_on(run: Run, client: Client, folder: Path) -> None:
    run("add", "clickjobs:count")
    before = fold(client).specs["count"]
    (folder / "clickjobs.py").write_text(SOURCE.replace("return None", "return {}"))
    sys.modules.pop("clickjobs")
    assert "count: changed; " in run("add", "clickjobs:count").output
    after = fold(client).specs["count"]
    assert after.version != before.version
    assert (after.generation, after.revision) == (1, 2)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (SOURCE, "clickjobs", "'clickjobs' does not name a job: use module:attribute"),
        (SOURCE, "nothere:count", "there is no module 'nothere' in "),
        (SOURCE, "other:cuont", "the module other has no 'cuont'"),
        (SOURCE, "other:clicks", "it is a Topic, not a job: declare it with @job(...)"),
        ("1 / 0", "other:count", "ZeroDivisionError: division by zero"),
        ("import nothing_of_this_name", "other:count", "No module named 'nothing_of_this_name'"),
        (SOURCE.replace("inputs=[clicks]", "inputs=[clicks, others]"), "other:count",
         "equal numbers of partitions, or 1: 'clicks' has 4, 'others' has 2"),
        (SOURCE.replace('"totals", Total, partition_by="user", partitions=4', '"clicks", Total, partitions=8'),
         "other:count", "job 'count': topic 'clicks': partitions is 4 on the server, 8 here"),
    ],
)  # fmt: skip
def test_what_is_no_job(run: Run, client: Client, folder: Path, source: str, target: str, said: str) -> None:
    (folder / "other.py").write_text(source)
    assert said in run("add", target, ok=False).output
    assert not client.redis.exists(keys.REGISTRY)


@pytest.mark.parametrize("words", [("other:count",), ("--all", "other")])
@pytest.mark.parametrize("source", ["1 / 0", "raise SystemExit('bye')"])
def test_a_module_that_fails_is_shown_where_it_does(
    run: Run, folder: Path, source: str, words: tuple[str, ...]
) -> None:
    (folder / "other.py").write_text(source)
    output = run("add", *words, ok=False).output
    assert output.startswith("Error: ")
    assert source in output
    assert "importlib" not in output
    assert "there is no module 'nothere' in " in run("add", "--all", "nothere", ok=False).output


def test_another_job_of_the_same_name(run: Run, client: Client, folder: Path) -> None:
    run("add", "clickjobs:count")
    (folder / "other.py").write_text(SOURCE.replace("inputs=[clicks]", "inputs=[others]"))
    output = run("add", "other:count", ok=False).output
    assert "inputs was clicks and is now others" in output
    assert "tidelog jobs reset count --to earliest --target other:count" in output
    run("reset", "count", "--to", "earliest", "--target", "other:count", "--yes")
    spec = fold(client).specs["count"]
    assert (spec.inputs, spec.generation, spec.start, spec.partitions) == (("others",), 2, "earliest", 2)


def test_add_needs_to_be_told_what(run: Run) -> None:
    assert "specify jobs as MODULE:JOB, or --all MODULE" in run("add", ok=False).output
    assert "specify jobs as MODULE:JOB, or --all MODULE" in run("add", "a:b", "--all", "c", ok=False).output


def test_help_teaches(run: Run) -> None:
    output = run("--help").output
    assert "tidelog jobs engine --state-dir" in output
    for name in ("add", "engine", "list", "logs", "pause", "remove", "reset", "resume", "status"):
        assert f"  {name} " in output
        assert len(run(name, "--help").output.splitlines()) > 6
    assert re.search(r"jobs +Manage stateful", CliRunner().invoke(main, ["--help"]).output)


def test_the_program_needs_nothing_of_the_extra_for_its_other_commands(folder: Path) -> None:
    """In a process, with pyarrow made impossible to import."""
    code = "import sys; sys.modules['pyarrow'] = None\nfrom tidelog.cli.program import main\nmain()"
    engine = ["jobs", "engine", "--state-dir", "states"]
    for words, status, said in (
        (["--help"], 0, "jobs Manage"), (["jobs", "--help"], 0, "jobs status"), (engine, 1, "'tidelog[jobs]'"),
        (["jobs", "add", "a:b"], 1, "'tidelog[jobs]'"), (["jobs", "reset", "a", "--to", "0"], 1, "'tidelog[jobs]'"),
    ):  # fmt: skip
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)
        assert done.returncode == status
        assert said in " ".join((done.stdout + done.stderr).split())


# -- what people do -------------------------------------------------------------------------------------------
def test_pause_resume_reset(run: Run, client: Client) -> None:
    run("add", "clickjobs:count")
    assert run("pause", "count").output == "count: paused\n"
    assert run("pause", "count").output == "count: paused already\n"
    assert looked(run)["count"]["state"] == "paused"
    assert run("resume", "count").output == "count: resumed\n"
    assert looked(run)["count"]["state"] == "no engine"
    assert "Aborted" in run("reset", "count", "--to", "earliest", text="n\n", ok=False).output
    sent = client.tappend("clicks:0", {"user": "ann"})
    preview = run("reset", "count", "--to", str(sent), "--dry-run").output.splitlines()
    assert preview[1].split() == ["0", "clicks:0", "0", str(sent), "0", "1"]
    assert fold(client).specs["count"].generation == 1
    output = run("reset", "count", "--to", "2026-01-01T00:00Z", "--yes").output
    assert output == "count: generation 2, from 2026-01-01T00:00Z\n"
    run("reset", "count", "--to", "latest", "--yes")
    assert fold(client).specs["count"].start.startswith("20")  # the time of now
    for wrong in ("yesterday", "2026-01-01"):
        assert "'--to': must be earliest, latest, an ID" in run("reset", "count", "--to", wrong, ok=False).output
    for command in (["pause", "x"], ["resume", "x"], ["remove", "x", "--yes"], ["reset", "x", "--to", "latest"]):
        assert "there is no job 'x'; jobs: count" in run(*command, ok=False).output


def test_remove_forgets(run: Run, client: Client) -> None:
    run("add", "clickjobs:count")
    client.tappend("clicks:0", {"user": "ann"})
    client.tread("clicks:0", "0", 0, group=keys.group("count"))
    client.tappend(keys.log("count", 0), {"a": "b"})
    assert run("remove", "count", "--yes").output == "count: removed\n"
    assert client.tgroup_list("clicks:0") == []
    assert not client.redis.exists(keys.log("count", 0))
    assert run("list").output.startswith("no jobs")
    run("add", "clickjobs:count")
    assert fold(client).specs["count"].generation == 2


def test_remove_again_finishes_what_was_interrupted(run: Run, client: Client) -> None:
    """A job that is gone from the registry, whose groups are still there, would hold entries back for ever."""
    run("add", "clickjobs:count")
    client.tappend("clicks:0", {"user": "ann"})
    client.tread("clicks:0", "0", 0, group=keys.group("count"))
    change(client, registry.remove("count"))
    assert run("remove", "count", "--yes").output == "count: removed\n"
    assert client.tgroup_list("clicks:0") == []
    assert "there is no job 'other'" in run("remove", "other", "--yes", ok=False).output


def test_reset_leaves_nothing_on_inputs_that_are_not_read_any_more(run: Run, client: Client, folder: Path) -> None:
    run("add", "clickjobs:count")
    for stream in ("clicks:0", "clicks:3", "others:0"):
        client.tread(stream, "0", 0, group=keys.group("count"))
    client.tappend(keys.log("count", 3), {"a": "b"})
    client.redis.set(keys.origin("count", 1), "{}")
    (folder / "other.py").write_text(SOURCE.replace("inputs=[clicks]", "inputs=[others]"))
    run("reset", "count", "--to", "earliest", "--target", "other:count", "--yes")
    assert client.tgroup_list("clicks:0") == client.tgroup_list("clicks:3") == []
    assert [each.name for each in client.tgroup_list("others:0")] == [keys.group("count").encode()]
    assert not client.redis.exists(keys.log("count", 3), keys.origin("count", 1))


# -- what is shown --------------------------------------------------------------------------------------------
def test_lag_is_what_the_log_says(run: Run, client: Client) -> None:
    run("add", "clickjobs:count")
    ids = [client.tappend("clicks:1", {"user": "ann"}) for _ in range(10)]
    before = looked(run)["count"]
    assert before["lag"] == 10
    assert before["lag_ms"] >= 0
    marker = Marker(3, "run", 1, "v", {"clicks": InputSpan(StreamId(0), ids[6], 7)}, ids[6].ms, 7, "")
    client.tappend(keys.log("count", 1), marker.fields())
    after = looked(run, "count")["count"]
    assert [(each["lag"], each["epoch"]) for each in after["partitions"]] == [(0, None), (3, 3), (0, None), (0, None)]
    client.redis.set(keys.recovery("count", 2), '{"from": 1, "epoch": 5, "to": 9}')
    client.redis.set(keys.recovery("count", 1), '{"from": 1, "epoch": 2, "to": 2}')  # of before epoch 3
    output = run("status", "count").output
    assert "lag           3 entries, the oldest is " in output
    assert "from 1, epoch 5, to 9" in output
    assert "to 2" not in output
    assert run("status").output.startswith("engines: none; start one: tidelog jobs engine\njob    status")


def test_dead_letters_of_a_job(run: Run, client: Client, folder: Path) -> None:
    """Those that are open, although no engine runs."""
    run("add", "clickjobs:count")
    assert looked(run)["count"]["dead_letters"] == {}
    declared = SOURCE.replace("import MicroBatch, job", "import DeadLetter, MicroBatch, job")
    (folder / "lettersjobs.py").write_text(declared.replace("state=int)", "state=int, on_error=[DeadLetter()])"))
    run("add", "lettersjobs:count")
    assert looked(run)["count"]["dead_letters"] == {"clicks.dead": 0}
    steps(client, deadletters.ready("clicks.dead"))
    for _ in range(3):
        client.tappend("clicks.dead:0", {"user": "ann"})
    row = run("status").output.splitlines()[2]
    assert re.search(r" no engine +- +- +0 +- +- +- +3 ", row), row
    assert "dead letters  3 in clicks.dead; see: tidelog dlq list\n" in run("status", "count").output
    client.redis.delete("clicks.dead:0")
    client.redis.set("clicks.dead:0", "no stream")  # one topic that can't be read does not hide the status
    found = looked(run)["count"]
    assert (found["dead_letters"], found["in_rate"], found["out_rate"]) == ({"clicks.dead": None}, None, None)


def test_status_of_a_job_whose_keys_hold_something_else(run: Run, client: Client) -> None:
    run("add", "clickjobs:count")
    marker = Marker(3, "run", 1, "v", {"clicks": InputSpan(StreamId(0), StreamId(1), 7)}, 1, 7, "")
    client.tappend(keys.log("count", 0), marker.fields())
    deep = "[" * 100_000
    client.tappend(keys.log("count", 1), {b"\xff": b"\xff"})
    client.tappend(keys.log("count", 2), {**marker.fields(), "inputs": '{"clicks": ' + deep})
    for text in (deep, '{"x": ' + deep, '{"to": "x"}', '{"to": null}', "[]"):
        for key in (keys.recovery("count", 0), keys.status("count"), keys.snapshots("count"), keys.ENGINES):
            client.redis.set(key, text)
        for command in (["status"], ["status", "count"], ["status", "--json"]):
            assert run(*command).output
    assert [each["epoch"] for each in looked(run, "count")["count"]["partitions"]] == [3, None, None, None]


def test_status_and_logs_of_what_runs(run: Run, client: Client, tidelog_server: Server) -> None:
    run("add", "clickjobs:count")
    with engine(tidelog_server.url, "e1", 5) as process:
        eventually(lambda: looked(run)["count"]["state"] == "running")
        eventually(lambda: (looked(run)["count"]["status"] or {}).get("rows_in"))
        seen = looked(run)
        assert seen["engines"] == ["e1"]
        assert seen["count"]["engine"] == "e1"
        output = run("status").output
        assert output.startswith(
            "engines: e1\njob    status   engine  epoch  lag  age  in/s  out/s  dead letters  keys "
        )
        assert run("logs", "count").output.split("  ", 1)[1].startswith("e1  start  version ")
        assert run("remove", "count", "--yes").output == "count: removed\n"
        eventually(lambda: "stop" in run("logs", "count").output)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "there is no job 'x'" in run("logs", "x", ok=False).output


def test_no_server(run: Run) -> None:
    assert "no answer from redis://localhost:1: " in run("list", "--url", "redis://localhost:1", ok=False).output
