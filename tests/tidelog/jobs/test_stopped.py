"""Python workers of Spark's that are stopped under a driver that lives, and go on later.

The function stops its own process, once, after it has changed its state: as a machine that freezes would.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.test_engine import SOURCE, cli, log, process, send, totals
from tests.tidelog.spark.sparkkit import require_spark
from tests.waiting import eventually
from tidelog import Client
from tidelog.testing import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TIMEOUT = 8
STOPPING = (
    SOURCE.replace("state=int)", f"state=int, timeout={TIMEOUT})").replace(
        "    return {totals", "    stop()\n    return {totals"
    )
    + """

def stop():
    import os, signal
    try:
        whom = open(os.environ["MARK"]).read()
        os.unlink(os.environ["MARK"])
    except FileNotFoundError:
        return
    with open(os.environ["MARK"] + ".stopped", "w") as said:
        said.write(f"{os.getpid()} {os.getppid()}")
    if whom == "daemon":
        os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
)
USERS = [f"u{at % 7}" for at in range(70)]


@pytest.fixture(autouse=True)
def spark() -> None:
    require_spark()


def state(pid: int) -> str:
    """One letter; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def counted(client: Client, times: int) -> bool:
    return totals(client) == Counter(USERS * times)


@pytest.mark.parametrize("whom", ["worker", "daemon"])
def test_one_that_is_stopped_in_an_epoch(
    tidelog_server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whom: str
) -> None:
    """The epoch is ended by the job's timeout, and run again; what the stopped one does afterwards changes nothing.

    daemon: what starts Spark's workers is stopped as well, so that Spark can't end the worker: another one that is
    there does the epoch beside it, or none can.
    """
    url, mark = tidelog_server.url, tmp_path / "mark"
    monkeypatch.setenv("MARK", str(mark))
    (tmp_path / "clickjobs.py").write_text(STOPPING)
    cli(tmp_path, url, "add", "clickjobs:count")
    words = ["--path", str(tmp_path), "--store", f"file://{tmp_path}/store"]
    with process(url, tmp_path, "e1", *words):
        send(client, USERS)
        eventually(lambda: totals(client) == Counter(USERS), seconds=100)
        mark.write_text(whom)
        send(client, USERS)
        stopped = Path(f"{mark}.stopped")
        worker, daemon = eventually(lambda: stopped.exists() and list(map(int, stopped.read_text().split())))
        eventually(lambda: state(worker) == "T")
        if whom == "daemon":
            said = log(tmp_path, "e1")
            eventually(
                lambda: counted(client, 2) or said.read_text().count("(timeout) and was cancelled") > 1, seconds=60
            )
            assert state(worker) == "T"
            os.kill(worker, signal.SIGCONT)  # it ends its task, which nobody waits for any more
            eventually(lambda: state(worker) != "T")
            os.kill(daemon, signal.SIGCONT)
        eventually(lambda: totals(client) == Counter(USERS * 2), seconds=100)
        if state(worker) == "T":  # Spark may have ended it
            os.kill(worker, signal.SIGCONT)
        for number in (3, 4):
            send(client, USERS)
            eventually(partial(counted, client, number), seconds=60)
        assert "status        running" in cli(tmp_path, url, "status", "count")
