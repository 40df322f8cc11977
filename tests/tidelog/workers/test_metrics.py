"""--metrics, --log-json: what a worker process tells; and the records of the standard logging inside a program."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.tidelog.workers.workerkit import process
from tests.waiting import eventually, until
from tidelog.testing import Server, free_port
from tidelog.topics import Topic
from tidelog.workers import App
from tidelog.workers.logs import LogFields
from tidelog.workers.operate import metrics

SOURCE = """
import asyncio, logging, msgspec
from tidelog.workers import App, DeadLetter, timing, to_prometheus

class Order(msgspec.Struct):
    id: int
    key: str = "k"

app = App("shop", url=URL, lease=20.0)
orders = app.topic("orders", Order, partition_by="key", partitions=4)
log = logging.getLogger("shop.bill")

@app.each(orders, on_error=[DeadLetter()], middleware=[timing(observe=to_prometheus())])
async def bill(order: Order) -> None:
    if order.id == 3:
        raise ValueError("three")
    log.info("billed %d", order.id, extra={"order": order.id})
"""

pytestmark = pytest.mark.slow


def send(server: Server, count: int) -> None:
    from tests.tidelog.workers.workerkit import Order

    with server.client() as client:
        orders: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=4)
        orders.use(sync=client)
        orders.sync.send_many(Order(at) for at in range(count))


def scrape(port: int) -> dict[str, float]:
    """Values by name and labels; {} while nobody serves the port."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return {}
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name != "worker")
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_a_worker_is_scraped(tidelog_server: Server, tmp_path: Path) -> None:
    port = free_port()
    send(tidelog_server, 10)
    with process(tidelog_server, tmp_path, SOURCE, "--metrics", str(port)) as worker:
        finished = "tidelog_worker_events_total{app=shop,event=finished,processor=bill}"
        eventually(lambda: scrape(port).get(finished) == 9)
        acknowledged = "tidelog_worker_events_total{app=shop,event=acknowledged,processor=bill}"
        eventually(lambda: scrape(port).get(acknowledged) == 10)
        found = scrape(port)
        assert found["tidelog_worker_events_total{app=shop,event=deadlettered,processor=bill}"] == 1
        assert found["tidelog_worker_partitions{app=shop,processor=bill}"] == 4
        assert found["tidelog_worker_in_flight{app=shop,partition=0,processor=bill}"] == 0
        assert found["tidelog_worker_lease_held{app=shop}"] == 1
        assert found["tidelog_worker_server_up{app=shop}"] == 1
        assert found["tidelog_worker_loop_delay_seconds_bucket{app=shop,le=+Inf}"] > 0
        assert found["tidelog_worker_lag_entries{app=shop,partition=3,processor=bill}"] == 0
        assert found["tidelog_worker_paused{app=shop,partition=3,processor=bill}"] == 0
        assert found["tidelog_worker_call_seconds_count{app=shop,outcome=ok,processor=bill}"] == 9
        assert any(name.startswith("process_resident_memory_bytes") for name in found)  # the default registry
        with pytest.raises(ConnectionError), socket.create_connection((_address(), port), 5):
            pass  # loopback only
        tidelog_server.kill()
        eventually(lambda: scrape(port).get("tidelog_worker_server_up{app=shop}") == 0)
        assert finished in scrape(port)
        worker.kill()


def adjacent_ports() -> int:
    """A free port whose successor is free as well."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port


def _address() -> str:
    """An address of this machine that is not the one it is served on."""
    return "127.0.0.2"


def test_each_process_has_a_port(tidelog_server: Server, tmp_path: Path) -> None:
    port = adjacent_ports()
    with process(tidelog_server, tmp_path, SOURCE, "--metrics", str(port), "--workers", "2"):
        eventually(lambda: scrape(port) and scrape(port + 1))


def test_a_port_that_is_taken(tidelog_server: Server, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process(tidelog_server, tmp_path, SOURCE, "--metrics", str(port)) as worker:
            assert worker.wait() == 1
            assert f"Error: --metrics {port}: 127.0.0.1:{port} is not available: " in worker.log
            assert "Traceback" not in worker.log


def test_without_prometheus_client_it_says_what_to_install(tidelog_server: Server, tmp_path: Path) -> None:
    source = SOURCE.replace(", middleware=[timing(observe=to_prometheus())]", "")
    hidden = f"import sys\nsys.modules['prometheus_client'] = None\n{source}"
    with process(tidelog_server, tmp_path, hidden, "--metrics", "0") as worker:
        assert worker.wait() == 1
        assert "Error: --metrics needs prometheus-client: pip install 'tidelog[workers]'" in worker.log


def test_the_documented_names_are_those_that_there_are(tidelog_server: Server) -> None:
    """Names and labels in the header of the module, which docs/workers.md repeats."""
    documented = dict(re.findall(r"^    (tidelog_\w+)\{([\w,]+)\}", metrics.__doc__ or "", re.MULTILINE))
    app = App("shop", url=tidelog_server.url)
    orders = app.topic("orders", dict, partitions=2)

    @app.each(orders)
    async def bill(_: dict[str, Any]) -> None: ...

    async def told() -> dict[str, str]:
        import prometheus_client

        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, {"a": "b"})
            await test.idle()
            collector = metrics.Collector(test.workers[0], prometheus_client)
            families = await asyncio.to_thread(lambda: list(collector.collect()))
            collector.close()
            return {
                family.name + ("_total" if family.type == "counter" else ""): ",".join(family._labelnames)
                for family in families
            }

    assert asyncio.run(told()) == documented
    text = (Path(__file__).parents[3] / "docs" / "workers.md").read_text()
    assert [name for name in documented if f"`{name}`" not in text] == []


# -- logs ----------------------------------------------------------------------------------------------------
def test_json_lines_say_where_they_come_from(tidelog_server: Server, tmp_path: Path) -> None:
    send(tidelog_server, 5)
    with process(tidelog_server, tmp_path, SOURCE, "--log-json") as worker:
        eventually(lambda: "billed 4" in worker.log)
        records = [json.loads(line) for line in worker.log.splitlines()]
        (billed,) = [each for each in records if each["message"] == "billed 4"]
        assert billed["order"] == 4
        assert (billed["level"], billed["logger"], billed["processor"]) == ("info", "shop.bill", "bill")
        assert isinstance(billed["partition"], int)
        (failed,) = [each for each in records if "given up" in each["message"]]
        assert (failed["processor"], failed["partition"], failed["worker"]) == (
            "bill", billed["partition"], billed["worker"],
        )  # fmt: skip
        assert "ValueError: three" in failed["error"]


def test_a_program_that_configures_logging_is_left_alone(tidelog_server: Server, tmp_path: Path) -> None:
    ours = f"import logging\nlogging.basicConfig(format='OURS %(message)s', level='INFO')\n{SOURCE}"
    send(tidelog_server, 2)
    with process(tidelog_server, tmp_path, ours, "--log-json") as worker:
        eventually(lambda: "OURS billed 1" in worker.log)
        assert "the program configures logging itself: --log-json" in worker.log


def test_records_have_the_fields_in_a_program_of_its_own(
    tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", url=tidelog_server.url)
    orders = app.topic("orders", dict, partitions=2)
    ours = logging.getLogger("shop")

    @app.each(orders, ordering="none")
    async def bill(_: dict[str, Any]) -> None:
        ours.info("mine")
        raise ValueError

    async def told() -> None:
        caplog.handler.addFilter(LogFields())
        async with app.test(server=tidelog_server) as test:
            with caplog.at_level(logging.INFO):
                await test.feed(orders, {"a": "b"})
                await until(lambda: any(record.msg == "mine" for record in caplog.records))
                await until(lambda: any("attempt 1 failed" in record.getMessage() for record in caplog.records))

    asyncio.run(told())
    (mine, *_) = [record for record in caplog.records if record.msg == "mine"]
    assert (mine.__dict__["worker"], mine.__dict__["processor"]) == ("test-1", "bill")
    assert mine.__dict__["partition"] is None
    (failed, *_) = [record for record in caplog.records if "attempt 1 failed" in record.getMessage()]
    assert failed.__dict__["processor"] == "bill"
    assert failed.__dict__["partition"] in (0, 1)


def test_importing_configures_nothing() -> None:
    code = "import logging, tidelog.workers; print(logging.getLogger().handlers, logging.getLogger('tidelog').handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"
