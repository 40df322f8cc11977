"""Jobs on a cluster: executors in processes of their own, each with a disk of its own, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.clusterkit import QUICK, end, executors, home, standalone
from tests.tidelog.jobs.enginekit import ROOT
from tests.tidelog.jobs.test_engine import cli, process, send
from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import eventually
from tidelog import Client
from tidelog.jobs.snapshots import owners
from tidelog.jobs.snapshots.manifests import folder_of
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.testing import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
LOCAL = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf",
         f"spark.executor.extraJavaOptions={QUICK}"]  # fmt: skip

SOURCE = """
import os
import msgspec, pyarrow as pa
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic

class Click(msgspec.Struct):
    user: str

class Total(msgspec.Struct):
    user: str
    count: int
    disk: str

clicks = Topic("clicks", Click, partition_by="user", partitions=2)
totals = Topic("totals", Total, partition_by="user", partitions=2)

@job(inputs=[clicks], outputs=[totals], state=int, max_rows=20, snapshot_epochs=4)
def count(batch: MicroBatch, state: State[int]):
    assert os.path.dirname(__file__) in os.environ["PYTHONPATH"].split(os.pathsep)  # as what frame jobs call needs it
    users = batch.table["user"].combine_chunks().value_counts()
    names = [each["values"].as_py() for each in users]
    counts = [(before or 0) + each["counts"].as_py() for before, each in zip(state.get_many(names), users)]
    state.put_many(names, counts)
    return {totals: pa.table({"user": names, "count": counts, "disk": [os.environ["DISK"]] * len(names)})}
"""
FRAMES = """
from pyspark.sql import DataFrame, functions as F
from clusterjobs import clicks, job, totals

@job(inputs=[clicks], outputs=[totals], max_rows=50, options={"outputMode": "update"})
def tallied(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").count().withColumnRenamed("count", "count").withColumn("disk", F.lit("none"))
"""
STARTING = 200.0  # seconds: three JVMs that begin cold, on a machine with other things to do
USERS = [f"u{at % 17}" for at in range(400)]  # some 10 epochs


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the job's module, and a folder for the engine."""
    (tmp_path / "clusterjobs.py").write_text(SOURCE)
    (tmp_path / "engine").mkdir()
    return tmp_path


def read(client: Client) -> tuple[Counter[str], list[list[str]]]:
    """The last total of each user; and by partition the disks that were used, one after the other.

    Totals went up, one step of a batch after the other: nothing was put out twice.
    """
    found: Counter[str] = Counter()
    disks: list[list[str]] = [[], []]
    for at in range(2):
        for page in client.pages(f"totals:{at}"):
            for entry in page:
                facts = entry.text()
                assert int(facts["count"]) > found[facts["user"]]
                found[facts["user"]] = int(facts["count"])
                if disks[at][-1:] != [facts["disk"]]:
                    disks[at].append(facts["disk"])
    return found, disks


def words(folder: Path, master: str, state_dir: str) -> list[str]:
    return ["--master", master, "--path", str(folder), "--store", f"file://{folder}/store", "--state-dir", state_dir,
            *LOCAL]  # fmt: skip


def has(client: Client, sent: list[str], seconds: float = STARTING) -> None:
    """Wait until everything that was sent is counted: neither less nor more."""
    eventually(lambda: read(client)[0].total() >= len(sent), seconds=seconds)
    assert read(client)[0] == Counter(sent)


def put(client: Client, sent: list[str], users: list[str]) -> None:
    send(client, users)
    sent += users


def spread(client: Client, sent: list[str]) -> tuple[str, str]:
    """The disks of the two partitions, when each executor has one: the first one to come may have had both."""
    has(client, sent)

    def two() -> tuple[str, str] | None:
        one, other = (part[-1] for part in read(client)[1])
        if one != other:
            return one, other
        put(client, sent, USERS[:17])
        has(client, sent)
        return None

    found: tuple[str, str] = eventually(two, seconds=STARTING)
    return found


def disks(client: Client) -> tuple[str, str]:
    one, other = (part[-1] for part in read(client)[1])
    return one, other


def moves(client: Client) -> int:
    return sum(map(len, read(client)[1]))


def test_an_executor_that_is_killed(
    tidelog_server: Server, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition goes on, on the other one, which has nothing of its state. Before, each stays where it is."""
    url = tidelog_server.url
    (folder / "clusterjobs.py").write_text(SOURCE.replace('"DISK"', '"SPARK_LOCAL_DIRS"'))  # of each executor its own
    monkeypatch.setenv("SPARK_HOME", str(home(folder)))
    cli(folder, url, "add", "clusterjobs:count")
    sent: list[str] = []
    put(client, sent, USERS)
    given = [*words(folder, "local-cluster[2,1,1024]", "$SPARK_LOCAL_DIRS/jobs"), "--conf",
             f"spark.local.dir={folder}/local"]  # fmt: skip
    with process(url, folder / "engine", "e1", *given) as engine:
        spread(client, sent)
        before = moves(client)
        put(client, sent, USERS)
        has(client, sent)
        assert moves(client) == before
        put(client, sent, USERS)
        eventually(lambda: read(client)[0].total() > len(sent) - len(USERS) * 0.7)
        os.kill(min(executors(engine.pid)), signal.SIGKILL)
        began = time.monotonic()
        has(client, sent)
        print(f"everything was counted {time.monotonic() - began:.1f} s after SIGKILL")
        put(client, sent, USERS)  # on a busy machine, the executor may have counted the others before it was killed
        has(client, sent)
        assert moves(client) > before


def test_partitions_move_to_another_worker(tidelog_server: Server, client: Client, folder: Path) -> None:
    """Workers with different disks; one is killed, with its executor, and its partition goes on from a snapshot.

    Their Python is told by a setting; it is one that changes the variable of --state-dir.
    """
    url = tidelog_server.url
    cli(folder, url, "add", "clusterjobs:count")
    sent: list[str] = []
    put(client, sent, USERS)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nDISK="$DISK/ssd" exec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    one, two = (str(folder / name / "ssd") for name in ("disk-one", "disk-two"))
    with standalone(folder) as cluster:
        worker = cluster.worker("one", DISK=str(folder / "disk-one"))
        cluster.worker("two", DISK=str(folder / "disk-two"))
        given = [*words(folder, cluster.url, "${DISK}/jobs"), "--conf", f"spark.pyspark.python={python}"]
        with process(url, folder / "engine", "e1", *given):
            found = spread(client, sent)
            assert set(found) == {one, two}
            snapshots = folder / "store" / folder_of("count", 1, found.index(one))
            eventually(lambda: list(snapshots.glob("*.json")), seconds=STARTING)
            put(client, sent, USERS)
            eventually(lambda: read(client)[0].total() > len(sent) - len(USERS) * 0.7)
            end(worker)
            began = time.monotonic()
            has(client, sent)
            print(f"everything was counted {time.monotonic() - began:.1f} s after SIGKILL")
            put(client, sent, USERS)  # on a busy machine, the worker may have counted the others before it was killed
            has(client, sent)
            assert disks(client) == (two, two)
    for at in ("0", "1"):
        assert (Path(two) / "jobs/count/1" / at).is_dir()


def test_a_frame_job_whose_executor_is_killed(
    tidelog_server: Server, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch runs again, on the other one; its state is in the object store, as is its checkpoint."""
    url = tidelog_server.url
    (folder / "framejobs.py").write_text(FRAMES)
    monkeypatch.setenv("SPARK_HOME", str(home(folder)))
    cli(folder, url, "add", "framejobs:tallied")
    sent: list[str] = []
    put(client, sent, USERS)
    given = words(folder, "local-cluster[2,1,1024]", f"{folder}/state")
    with process(url, folder / "engine", "e1", *given) as engine:
        has(client, sent)
        put(client, sent, USERS)
        eventually(lambda: read(client)[0].total() > len(sent) - len(USERS) * 0.9, seconds=100)
        os.kill(min(executors(engine.pid)), signal.SIGKILL)
        has(client, sent)
        put(client, sent, USERS)
        has(client, sent)
    assert (folder / "store" / "tallied" / "1" / "checkpoint" / "offsets").is_dir()
    assert set(owners.read(ObjectStore(f"file://{folder}/store"), "tallied", 1)) == {"clicks", "totals"}


SWEEPING = """
import sys
from concurrent.futures import Future
from tidelog.transport.access import Access
from tidelog.jobs.engine.session import EngineSettings, begin
from tidelog.jobs.engine.cleanup import disks_of

master, *conf = sys.argv[1:]
settings = EngineSettings("e1", Access(), master, "${DISK}/jobs", spark=dict(each.split("=", 1) for each in conf))
print("all gone:", disks_of(settings, begin(settings))({"count": 1}))
"""


def test_what_is_over_is_removed_on_the_machines(folder: Path) -> None:
    """Of the folder that an executor's variable names, which this process does not have."""
    disk = folder / "disk"
    for generation in (1, 2):
        (disk / "jobs" / "count" / str(generation) / "0" / "0").mkdir(parents=True)
    conf = [*LOCAL[1::2], f"spark.executorEnv.DISK={disk}"]
    environment = os.environ | {"SPARK_HOME": str(home(folder)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SWEEPING, "local-cluster[1,1,1024]", *conf], env=environment, capture_output=True,
        text=True, timeout=STARTING, check=False,
    )  # fmt: skip
    assert "all gone: True" in done.stdout, done.stderr[-3000:]
    assert [path.name for path in (disk / "jobs" / "count").iterdir()] == ["2"]
