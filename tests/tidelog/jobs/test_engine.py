"""``tidelog jobs engine`` as a process, with Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.enginekit import ROOT
from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import eventually
from tidelog import Client
from tidelog.client import strings
from tidelog.jobs import keys
from tidelog.jobs.engine.membership import chosen
from tidelog.testing import Server
from tidelog.topics import partition_of

pytestmark = pytest.mark.slow
QUICK = ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "--conf",
         "spark.driver.memory=700m"]  # fmt: skip


@pytest.fixture(autouse=True)
def spark() -> None:
    require_spark()


@contextmanager
def process(url: str, folder: Path, name: str, *words: str, lease: float = 5) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tidelog.cli", "jobs", "engine", "--url", url, "--master", "local[2]",
               "--state-dir", str(folder / "state"), "--name", name, "--lease", str(lease), *QUICK, *words]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (
        log(folder, name).open("a") as out,
        subprocess.Popen(command, cwd=folder, env=environment, text=True, stderr=out, start_new_session=True) as it,
    ):
        try:
            yield it
        except BaseException:
            print(log(folder, name).read_text()[-8000:])
            raise
        finally:
            if it.poll() is None:
                os.killpg(it.pid, signal.SIGKILL)


def log(folder: Path, name: str) -> Path:
    """What an engine says."""
    return folder / f"{name}.log"


def test_it_takes_part_before_spark_is_there_and_drains(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    began = time.monotonic()
    with process(tidelog_server.url, tmp_path, "e1") as it:
        eventually(lambda: client.redis.exists(keys.lease("e1")))
        joined = time.monotonic() - began
        eventually(lambda: client.redis.exists(keys.ENGINES))
        it.terminate()
        assert it.wait(60) == 0
    print(f"joined after {joined:.2f} s")
    assert not client.redis.exists(keys.lease("e1"))
    assert b"e1" not in (client.run(strings.get(keys.ENGINES)) or b"")


def test_no_spark_no_engine(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    with process(tidelog_server.url, tmp_path, "e1", "--conf", "spark.driver.memory=lots") as it:
        assert it.wait(60) == 1
        assert "Spark did not start with master 'local[2]'" in log(tmp_path, "e1").read_text()
    assert not client.redis.exists(keys.lease("e1"))


def test_no_jvm_any_more_no_engine(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    """It would hold its jobs and run none of them. It leaves, so that others have them at once."""
    with process(tidelog_server.url, tmp_path, "e1") as it:
        eventually(lambda: " is ready, master " in log(tmp_path, "e1").read_text(), seconds=100)
        for children in Path(f"/proc/{it.pid}/task").glob("*/children"):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        assert it.wait(60) == 1
        assert "Spark has ended: its JVM has ended with status -9" in log(tmp_path, "e1").read_text()
    assert not client.redis.exists(keys.lease("e1"))
    assert b"e1" not in (client.run(strings.get(keys.ENGINES)) or b"")


SOURCE = """
import msgspec, pyarrow as pa, pyarrow.compute as pc
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic

class Click(msgspec.Struct):
    user: str

class Total(msgspec.Struct):
    user: str
    count: int

clicks = Topic("clicks", Click, partition_by="user", partitions=2)
totals = Topic("totals", Total, partition_by="user", partitions=2)

@job(inputs=[clicks], outputs=[totals], state=int)
def count(batch: MicroBatch, state: State[int]):
    users = batch.table["user"].combine_chunks().value_counts()
    names = [each["values"].as_py() for each in users]
    if "poison" in names:
        raise ValueError("poison in the well")
    known = state.get_many(names)
    counts = [(before or 0) + each["counts"].as_py() for before, each in zip(known, users)]
    state.put_many(names, counts)
    return {totals: pa.table({"user": names, "count": counts})}
"""


def cli(folder: Path, url: str, *words: str) -> str:
    command = [sys.executable, "-m", "tidelog.cli", "jobs", *words, "--url", url]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def send(client: Client, users: list[str]) -> None:
    """Into the partitions of their keys."""
    for user in users:
        client.tappend(f"clicks:{partition_of(user.encode(), 2)}", {"user": user})


def totals(client: Client) -> Counter[str]:
    """The last total of each user; and that totals went up one step of a batch after the other."""
    found: Counter[str] = Counter()
    for at in range(2):
        for page in client.pages(f"totals:{at}"):
            for entry in page:
                facts = entry.text()
                assert int(facts["count"]) > found[facts["user"]]
                found[facts["user"]] = int(facts["count"])
    return found


def test_a_job_goes_on_elsewhere_when_its_engine_is_killed(
    tidelog_server: Server, client: Client, tmp_path: Path
) -> None:
    """Two engines, each with a disk of its own; the one that runs the job is killed with all that it started."""
    url = tidelog_server.url
    (tmp_path / "clickjobs.py").write_text(SOURCE)
    for name in ("e1", "e2"):
        (tmp_path / name).mkdir()
    assert cli(tmp_path, url, "add", "clickjobs:count").startswith("count: added; reads clicks, writes totals")
    users = [f"u{at % 7}" for at in range(100)]
    send(client, users)
    words = ["--path", str(tmp_path), "--store", f"file://{tmp_path}/store"]
    with process(url, tmp_path / "e1", "e1", *words) as one, process(url, tmp_path / "e2", "e2", *words) as two:
        eventually(lambda: totals(client) == Counter(users), seconds=60)
        runs = chosen("count", ["e1", "e2"])
        eventually(lambda: f" {runs} " in cli(tmp_path, url, "status"), seconds=60)
        dead, alive = (one, two) if runs == "e1" else (two, one)
        send(client, users)
        eventually(lambda: totals(client) == Counter(users * 2), seconds=60)
        os.killpg(dead.pid, signal.SIGKILL)
        began = time.monotonic()
        send(client, users)
        eventually(lambda: totals(client) == Counter(users * 3), seconds=60)
        print(f"the next epoch was published {time.monotonic() - began:.1f} s after SIGKILL, of a lease of 5 s")
        # The status follows the output: an engine on a busy machine is late with it.
        eventually(lambda: "status        running" in cli(tmp_path, url, "status", "count"))
        eventually(lambda: "lag           0" in cli(tmp_path, url, "status", "count"))
        eventually(lambda: " moved  from " in cli(tmp_path, url, "logs", "count"))

        send(client, ["poison"])
        eventually(lambda: "status        failed" in cli(tmp_path, url, "status", "count"))
        said = cli(tmp_path, url, "logs", "count")
        assert "ValueError: poison in the well" in said
        assert 'clickjobs.py", line 2' in said
        cli(tmp_path, url, "reset", "count", "--to", "latest", "--yes")
        before = totals(client)
        send(client, ["new"])
        eventually(lambda: totals(client)["new"] == 1, seconds=60)
        assert totals(client) == before + Counter(["new"])
        cli(tmp_path, url, "pause", "count")
        eventually(lambda: "status        paused" in cli(tmp_path, url, "status", "count"))
        assert cli(tmp_path, url, "remove", "count", "--yes") == "count: removed\n"
        alive.terminate()
        assert alive.wait(90) == 0
