"""An engine and ``tidelog jobs`` run with exactly the rights that docs/acl.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[jobs]')")

from click.testing import CliRunner

from tests.tidelog.rightskit import granted
from tests.tidelog.spark.sparkkit import require_spark
from tidelog import Client
from tidelog.cli.program import main
from tidelog.jobs.testengine import running_engine
from tidelog.testing import Server
from tidelog.topics import Topic

PROGRAM = """
import msgspec
from tidelog.jobs import DeadLetter, job
from tidelog.topics import Topic

class Order(msgspec.Struct):
    id: int
    customer: str

orders = Topic("orders", Order, partition_by="customer", partitions=1)
totals = Topic("totals", Order, partition_by="customer", partitions=1)

@job(inputs=[orders], outputs=[totals], state=int, on_error=[DeadLetter()])
def count(batch, state):
    for row in batch.table.to_pylist():
        if row["id"] < 0:
            raise ValueError("less than 0")
    return {totals: batch.table.select(["id", "customer"])}
"""


def test_an_engine(
    tidelog_server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    (tmp_path / "rights_jobs.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    topics = ["orders", "totals", "orders.dead"]
    with granted(tidelog_server, "an engine of jobs, `tidelog jobs`", J="count", T=topics) as user:
        whole = tidelog_server.url
        monkeypatch.setattr(type(tidelog_server), "url", property(lambda _: user.url))
        with running_engine(tidelog_server, "rights_jobs:count", master="local[1]") as engine:
            topic: Topic[Any] = Topic("orders", dict[str, str], url=whole)
            del topic
            for number, customer in ((1, "ann"), (-2, "bob"), (3, "cy")):
                client.tappend("orders:0", {"id": str(number), "customer": customer})
            engine.idle(120)
            assert client.tlen("totals:0") == 2
            assert client.tlen("orders.dead:0") == 1
            for words in (
                "list", "status", "status count", "logs count", "pause count", "resume count",
                "reset count --to earliest --yes", "remove count --yes",
            ):  # fmt: skip
                result = CliRunner().invoke(main, ["jobs", *words.split(), "--url", user.url])
                assert result.exit_code == 0, (words, result.output, user.denied())
        monkeypatch.undo()
        assert user.denied() == []
