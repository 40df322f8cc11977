"""``running_engine``: a whole engine beside a test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

import msgspec
import pyarrow as pa

from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import eventually
from tidelog.jobs import JobError, MicroBatch, job
from tidelog.jobs.testengine import running_engine
from tidelog.testing import running_server
from tidelog.topics import Topic

if TYPE_CHECKING:
    from tidelog.jobs.state import State


class Click(msgspec.Struct):
    user: str


class Total(msgspec.Struct):
    user: str
    count: int


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=2)
totals: Topic[Total] = Topic("totals", Total, partition_by="user", partitions=2)


@job(inputs=[clicks], outputs=[totals], state=int)
def count(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    users = batch.table["user"].to_pylist()
    if "poison" in users:
        raise ValueError("a poison user")
    names = sorted(set(users))
    now = [(old or 0) + users.count(name) for name, old in zip(names, state.get_many(names), strict=True)]
    state.put_many(names, now)
    return {totals: pa.table({"user": names, "count": now})}


@pytest.mark.slow
@pytest.mark.timeout(500)  # two JVMs that begin cold
def test_an_engine_that_is_killed_goes_on_and_says_what_fails() -> None:
    require_spark()
    with (
        running_server() as server,
        server.client() as client,
        running_engine(server, count, lease=2) as engine,
        clicks.elsewhere(server.url),
    ):
        clicks.sync.send_many([Click("ann"), Click("bob"), Click("ann")])
        engine.idle()
        assert engine.status()["count"].engine == "test"
        engine.kill()
        assert not engine.running
        with pytest.raises(JobError, match="not running"):
            engine.idle()
        clicks.sync.send_many([Click("ann")])
        engine.start()
        engine.idle()
        rows = [entry.text() for at in range(2) for entry in client.trange(totals.stream(at))]
        found = sorted((row["user"], int(row["count"])) for row in rows)
        assert found[-1] == ("bob", 1)
        assert [count for user, count in found if user == "ann"][-1] == 3
        clicks.sync.send(Click("poison"))
        with pytest.raises(JobError, match="a poison user"):
            engine.idle()


def test_a_job_that_no_module_has_is_refused() -> None:
    @job(inputs=[clicks], outputs=[totals])
    def local(batch: MicroBatch) -> None: ...

    with running_server() as server, pytest.raises(JobError, match="not an attribute"), running_engine(server, local):
        pass


OWNER = """
import sys
from tidelog.jobs.testengine import running_engine
from tidelog.testing import running_server
with running_server() as server, running_engine(server) as engine:
    print(server.pid, engine._process.pid, engine.folder, server.directory, flush=True)
    sys.stdin.read()
"""


def test_the_engine_ends_if_its_test_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        server, engine, *folders = owner.stdout.readline().decode().split()
        owner.kill()
    try:
        eventually(lambda: not running(int(engine)), "the engine has ended")
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(server), signal.SIGKILL)  # it survives the process that started it
        for each in folders:
            shutil.rmtree(each)


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
