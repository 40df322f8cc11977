"""Each program runs with exactly the rights that docs/acl.md says: programs that need no Spark."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from click.testing import CliRunner

from tests.tidelog.flows.serverkit import running
from tests.tidelog.rightskit import ROWS, granted
from tests.waiting import eventually, until
from tidelog.cli.program import main
from tidelog.flows import Flow
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App, DeadLetter, Retry, Worker

SENDS = "a program that sends records, `tidelog send`"


FLOW = """
flows:
  main:
    connectors: {in: {type: stream, key: jobs, group: shop}, out: {type: stream, key: done}}
    pipelines: {p: []}
    connect: [in -> p -> out]
"""

PROGRAM = """
import msgspec
from tidelog.workers import App

class Order(msgspec.Struct):
    id: int
    customer: str

app = App("shop", "{url}")
orders = app.topic("orders", Order, partition_by="customer")

@app.each(orders)
async def bill(order): ...
"""


class Order(msgspec.Struct):
    id: int
    customer: str = "ann"


def orders(url: str) -> Topic[Order]:
    return Topic("orders", Order, partition_by="customer", partitions=2, url=url)


def test_every_row_of_the_table_is_tested() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*rights.py"))
    assert [name for name in ROWS if f'"{name}"' not in source] == []


def test_the_rights_are_needed(tidelog_server: Server) -> None:
    with granted(tidelog_server, SENDS, T="other") as user:
        topic = orders(user.url)
        with pytest.raises(redis.ResponseError, match="No permissions to access a key"):
            topic.sync.send(Order(1))
        topic.sync.close()


def test_records_are_sent(tidelog_server: Server) -> None:
    with granted(tidelog_server, SENDS, T="orders") as user:
        topic = orders(user.url)
        topic.sync.send(Order(1))
        topic.sync.send_many([Order(2), Order(3)])
        topic.sync.close()

        async def send() -> None:
            topic = orders(user.url)
            await topic.send(Order(4))
            await topic.close()

        asyncio.run(send())
        assert user.denied() == []


def test_records_are_sent_exactly_once(tidelog_server: Server) -> None:
    with granted(tidelog_server, "the same with an exactly-once producer", T="orders") as user:
        topic = orders(user.url)
        assert topic.sync.producer("loader").send_many([Order(1), Order(2)], 1).now
        topic.sync.close()
        assert user.denied() == []


def test_a_worker_and_what_operates_it(
    tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its declaration creates the topics; records are retried, given up, and replayed; timers and two workers run."""
    rows = ("a worker, `tidelog app`", "its dead letters", "`tidelog dlq replay`")
    with granted(tidelog_server, *rows, A="shop", T="orders") as user:
        app = App("shop", user.url, lease=2.0, grace=5.0)
        topic = app.topic("orders", Order, partition_by="customer", partitions=2, partition_size=1000)
        seen: list[int] = []
        swept: list[int] = []

        @app.each(topic, on_error=[Retry(1, first=0.01), DeadLetter()])
        async def bill(order: Order) -> None:
            seen.append(order.id)
            if order.id < 0:
                raise ValueError(order.id)

        @app.timer(0.1, on_leader=True)
        async def sweep() -> None:
            swept.append(1)

        async def work() -> None:
            workers = [Worker(app), Worker(app)]
            tasks = [asyncio.create_task(worker.run()) for worker in workers]
            await topic.send_many([Order(1, "ann"), Order(2, "bob"), Order(-3, "cy")])
            await until(lambda: seen.count(-3) >= 2 and 1 in seen and 2 in seen and swept)
            with tidelog_server.client() as client:
                await until(lambda: client.tlen("orders.dead:0") == 1)
            await topic.close()
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)

        asyncio.run(work())
        (tmp_path / "rights_shop.py").write_text(PROGRAM.format(url=user.url))
        monkeypatch.chdir(tmp_path)
        for words in (
            "app status rights_shop:app", "app pause rights_shop:app bill", "app resume rights_shop:app bill",
            "app reset rights_shop:app bill --to 0 --yes", f"dlq replay orders --all --url {user.url}",
            f"app delete shop --yes --url {user.url}",
        ):  # fmt: skip
            result = CliRunner().invoke(main, words.split())
            assert result.exit_code == 0, (words, result.output, user.denied())
        assert user.denied() == []


def test_a_flow(tidelog_server: Server) -> None:
    with granted(tidelog_server, "a flow with a `stream` of a group", S=["jobs", "done"], F="shop") as user:
        with tidelog_server.client() as client:
            for number in range(3):
                client.tappend("jobs", {"n": str(number)})

        def check(value: Any) -> Any:
            if value["n"] == "1":
                raise ValueError("one")
            return value

        flow = Flow("shop", server=user.url)
        flow.connector("in", "stream", key="jobs", group="shop", on_error=["dead_letter"])
        flow.connector("out", "stream", key="done")
        flow.pipeline("p", check)
        flow.connect("in -> p -> out")

        async def main() -> None:
            with tidelog_server.client() as client:
                async with running(flow):
                    await until(lambda: client.tlen("done") == 2 and client.tlen("flow.shop.dead:0") == 1)

        asyncio.run(main())
        assert user.denied() == []


def test_a_flow_process(tidelog_server: Server, tmp_path: Path) -> None:
    rows = ("`tidelog flow run` with a server", "a flow with a `stream` of a group")
    with granted(tidelog_server, *rows, N="shop", S=["jobs", "done"], F="main") as user:
        path = tmp_path / "flows.yaml"
        path.write_text(FLOW)
        words = [sys.executable, "-m", "tidelog.cli", "flow", "run", str(path), "--url", user.url, "--name", "shop"]
        process = subprocess.Popen([*words, "--listen", "none"], stderr=subprocess.PIPE)
        try:
            with tidelog_server.client() as client:
                client.tappend("jobs", {"n": 1})
                eventually(lambda: client.tlen("done") == 1 and client.redis.keys("flows:shop:process:*"))
        finally:
            process.terminate()
            _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert user.denied() == []


def test_a_backup(tidelog_server: Server, tmp_path: Path) -> None:
    with tidelog_server.client() as client:
        client.tappend("s", {"a": "b"})
    with granted(tidelog_server, "`tidelog backup`") as user:
        result = CliRunner().invoke(main, ["backup", str(tmp_path / "target"), "--url", user.url])
        assert result.exit_code == 0, (result.output, user.denied())
        assert user.denied() == []
