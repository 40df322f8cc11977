"""``running_engine``: a whole engine beside a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

import msgspec
import pyarrow as pa

from tests.tidelog.spark.sparkkit import require_spark
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
