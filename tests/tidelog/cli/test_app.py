"""tidelog app against a real server, with worker processes where there must be some."""

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

from tests.tidelog.workers.workerkit import process
from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.testing import Server
from tidelog.workers import AppError
from tidelog.workers.operate import deletion

Run = Callable[..., Result]
SOURCE = """
import asyncio, msgspec
from tidelog.workers import App, DeadLetter, Park

class Order(msgspec.Struct):
    id: int
    key: str

app = App("shop", url=URL, lease=5.0)
orders = app.topic("orders", Order, partition_by="key", partitions=4)

@app.each(orders, on_error=[DeadLetter()])
async def bill(order: Order) -> None:
    if order.id == 13:
        raise ValueError("thirteen")

@app.each(orders, ordering="key", on_error=[Park()])
async def book(order: Order) -> None:
    if order.key == "bad":
        raise ValueError("bad key")

@app.each(orders, ordering="none")
async def look(order: Order) -> None: ...
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tidelog_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the module ``shopapp``."""
    (tmp_path / "shopapp.py").write_text(f"URL = {tidelog_server.url!r}\n{SOURCE}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("shopapp", None)


@pytest.fixture
def run(folder: Path) -> Run:
    def run(*args: object, ok: bool = True, text: str | None = None) -> Result:
        result = CliRunner().invoke(main, ["app", *map(str, args)], input=text)
        assert (result.exit_code == 0) is ok, result.output
        return result

    return run


def send(*records: tuple[int, str]) -> None:
    import shopapp  # type: ignore[import-not-found]  # made by the fixture

    shopapp.orders.sync.send_many(shopapp.Order(*record) for record in records)
    shopapp.orders.sync.close()


def looked(run: Run, *options: str) -> dict[str, Any]:
    """The processors of a status, by name."""
    facts = json.loads(run("status", "shopapp:app", "--json", "--interval", "0", *options).output)
    return {processor["name"]: processor for processor in facts["processors"]} | {"app": facts}


def unfinished(run: Run, processor: str) -> int:
    return sum(each["lag"] + each["pending"] for each in looked(run)[processor]["partitions"])


def test_before_anything_has_run(run: Run) -> None:
    output = run("status", "shopapp:app", "--interval", "0").output
    assert output.startswith("app shop: 0 workers, leader: none\n")
    assert output.count("the topic does not exist yet") == 3
    output = run("reset", "shopapp:app", "bill", "--to", "0", "--yes", ok=False).output
    assert "topic 'orders' does not exist yet" in output


def test_status_of_what_runs(run: Run, folder: Path, tidelog_server: Server) -> None:
    send(*((at, f"k{at}") for at in range(100)), (13, "bad"), (14, "bad"))
    assert unfinished(run, "bill") == 102
    with process(tidelog_server, folder, SOURCE):
        eventually(lambda: unfinished(run, "bill") == 0 and unfinished(run, "look") == 0)
        eventually(lambda: unfinished(run, "book") == 2)
        seen = looked(run)
        (worker,) = seen["bill"]["members"]
        assert worker["lease_ms"] > 0
        assert [each["owner"] for each in seen["bill"]["partitions"]] == [worker["worker"]] * 4
        assert [each["worker"] for each in seen["look"]["members"]] == [worker["worker"]]
        assert [seen[name]["dead_letters"] for name in ("bill", "book")] == [{"orders.dead": 2}, {}]
        assert seen["bill"]["in_rate"] is None
        (parked,) = [each for each in seen["book"]["partitions"] if each["parked"]]
        assert parked["set_aside"] == 2
        output = run("status", "shopapp:app", "--interval", "0.1").output
        assert output.startswith("app shop: 1 worker, leader: ")
        head, bill, book = (line.split() for line in output.splitlines()[1:4])
        assert head[:4] == ["processor", "topic", "partitions", "ordering"]
        assert head[4:] == ["lag", "age", "in/s", "out/s", "dead", "letters", "pending"]
        assert bill == ["bill", "orders", "4", "partition", "0", "-", "0", "0", "2", "0"]
        assert (book[0], book[-2:]) == ("book", ["0", "2"])
        assert f"  key bad of partition {parked['partition']} is parked: ValueError: bad key\n" in output
        assert re.search(rf"\n  0 +{worker['worker']} +0 +- +0 +0 +-\n", output)
        assert re.search(r"\n  3 +all +0 +- +0 +0 +-\n$", output)


def test_rates_are_of_two_looks(run: Run) -> None:
    """Looks are a tenth of a second apart; nothing is finished meanwhile, so what is sent shows."""
    from tidelog.client.steps import run as run_steps
    from tidelog.workers.operate.status import read_status, throughput

    send((1, "a"))
    import shopapp

    client = shopapp.orders.client
    before = run_steps(client, read_status(shopapp.app))
    send(*((at, "a") for at in range(50)))
    client = shopapp.orders.client
    after = run_steps(client, read_status(shopapp.app))
    shopapp.orders.sync.close()
    found = throughput(before, after)["bill"]
    assert found.in_rate is not None
    assert round(found.in_rate * (after.at - before.at) / 1000) == 50
    assert found.out_rate == 0
    assert throughput(after, before)["bill"].in_rate is None


def test_reset_goes_back_and_on(run: Run, folder: Path, tidelog_server: Server, client: Client) -> None:
    send(*((at, "a") for at in range(10)))
    with process(tidelog_server, folder, SOURCE) as worker:
        eventually(lambda: unfinished(run, "bill") == 0)
        output = run("reset", "shopapp:app", "bill", "--to", "0", "--yes", ok=False).output
        assert "processor 'bill' is running on workers " in output
        assert "--force" in output
        run("reset", "shopapp:app", "bill", "--to", "0", "--yes", "--force")
        eventually(lambda: unfinished(run, "bill") == 0)
        worker.kill()
    eventually(lambda: not looked(run)["bill"]["members"][0]["lease_ms"])  # the lease of the dead one ends
    assert "Aborted" in run("reset", "shopapp:app", "bill", "--to", "0", ok=False, text="n\n").output
    preview = run("reset", "shopapp:app", "bill", "--to", "earliest", "--dry-run").output
    assert unfinished(run, "bill") == 0  # nothing was changed
    output = run("reset", "shopapp:app", "bill", "--to", "earliest", text="y\n").output
    assert output.startswith(preview)
    table = [line.split() for line in preview.splitlines()]
    assert re.search(r"partition +position +new position +read again +skipped +pending dropped +to read", preview)
    assert sum(int(row[3]) for row in table if row[0].isdigit()) == 10
    assert "bill: 4 partitions reset\n" in output
    assert unfinished(run, "bill") == 10
    (stream,) = [f"orders:{at}" for at in range(4) if client.tlen(f"orders:{at}")]
    at = stream[-1]
    entries = client.trange(stream)
    one = run("reset", "shopapp:app", "bill", "--to", entries[3].id, "--yes", "--partition", at)
    assert one.output.endswith("bill: 1 partition reset\n")
    assert unfinished(run, "bill") == 6
    client.tread(stream, count=2, group="shop.bill", retry=60_000)
    assert run("reset", "shopapp:app", "bill", "--to", "latest", "--yes").output.count(" 2 ") == 1
    assert unfinished(run, "bill") == 0
    assert client.tpending(stream, "shop.bill").count == 0
    run("reset", "shopapp:app", "bill", "--to", entries[0].id.time.isoformat(), "--yes")
    assert unfinished(run, "bill") == 10
    run("reset", "shopapp:app", "bill", "--to", "2999-01-01T00:00Z", "--yes")
    assert unfinished(run, "bill") == 0


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("soon", "must be earliest, latest, an ID such as"),
        ("end", ": 'end'"),
        ("2026-11-21T08:00", "or a time with its zone such as"),
        ("2026-13-21T08:00Z", ": '2026-13-21T08:00Z'"),
    ],
)
def test_a_target_that_is_none(run: Run, to: str, said: str) -> None:
    assert said in run("reset", "shopapp:app", "bill", "--to", to, "--yes", ok=False).output


def test_paused_by_hand_and_resumed(run: Run, folder: Path, tidelog_server: Server) -> None:
    send((1, "a"))
    with process(tidelog_server, folder, SOURCE):
        eventually(lambda: unfinished(run, "bill") == 0 and unfinished(run, "book") == 0)
        assert run("pause", "shopapp:app", "bill", "--reason", "audit").output == "bill: all partitions paused\n"
        assert run("pause", "shopapp:app", "bill").output == "bill: paused already\n"
        assert "ALL PARTITIONS ARE PAUSED: audit\n" in run("status", "shopapp:app", "--interval", "0").output
        output = run("pause", "shopapp:app", "book", "--key", "ann").output
        assert re.fullmatch(r"book: key ann in partition \d paused\n", output)
        assert run("pause", "shopapp:app", "look", "--partition", "3").output == "look: partition 3 paused\n"
        assert run("resume", "shopapp:app", "bill").output == "bill: all partitions resumed\n"
        assert run("resume", "shopapp:app", "look").output == "look: partition 3 resumed\n"
        assert "resumed\n" in run("resume", "shopapp:app", "book", "--key", "ann").output
        assert "nothing to resume" in run("resume", "shopapp:app", "book", ok=False).output
        send((2, "a"), (3, "ann"))
        eventually(lambda: unfinished(run, "bill") == unfinished(run, "book") == unfinished(run, "look") == 0)


def test_what_is_not_there_is_named(run: Run, folder: Path) -> None:
    send((1, "a"))
    output = run("pause", "shopapp:app", "bil", ok=False).output
    assert "app 'shop' has no processor 'bil': it has bill, book, look" in output
    assert "partitions 0 to 3, not 4" in run("pause", "shopapp:app", "bill", "--partition", "4", ok=False).output
    output = run("pause", "shopapp:app", "bill", "--key", "a", ok=False).output
    assert "a single key can be paused only with ordering='key'" in output
    assert "there is no module 'nowhere'" in run("status", "nowhere:app", ok=False).output
    assert "shopapp has no 'nothing'" in run("status", "shopapp:nothing", ok=False).output
    assert "shopapp:orders is Topic, not an App" in run("status", "shopapp:orders", ok=False).output
    output = run("status", "shopapp:app", "--url", "redis://127.0.0.1:1", ok=False).output
    assert "no answer from redis://127.0.0.1:1: " in output
    assert "--watch needs an --interval" in run("status", "shopapp:app", "--watch", "--interval", "0", ok=False).output


def test_a_declaration_that_makes_no_sense_is_an_error_of_the_program(run: Run, folder: Path) -> None:
    (folder / "wrongapp.py").write_text("from tidelog.workers import App\napp = App('a b')\n")
    output = run("status", "wrongapp:app", ok=False).output
    assert output.startswith("Error: wrongapp: an app can't have the name 'a b'")


def watch(folder: Path) -> subprocess.Popen[str]:
    words = ["app", "status", "shopapp:app", "--watch", "--json", "--interval", "0.05"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", *words], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_watching_ends_quietly_when_nobody_reads_it(folder: Path) -> None:
    send((1, "a"))
    with watch(folder) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        watching.stdout.readline()
        watching.stdout.close()
        assert watching.stderr.read() == ""
    assert watching.returncode == 1


def test_watching_ends_quietly_with_ctrl_c(folder: Path) -> None:
    send((1, "a"))
    with watch(folder) as watching:
        assert watching.stdout is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert looks[0]["at"] < looks[2]["at"]
    assert [looks[2]["processors"][0][name] for name in ("in_rate", "out_rate")] == [0.0, 0.0]
    assert (watching.returncode, errors) == (0, "")


def test_delete(run: Run, folder: Path, tidelog_server: Server, client: Client) -> None:
    url = ["--url", tidelog_server.url]
    assert "has no state of an app 'shop'" in run("delete", "shop", *url, ok=False).output
    assert "an app can't have the name 'sh*p'" in run("delete", "sh*p", *url, ok=False).output
    send(*((at, f"k{at}") for at in range(50)), (13, "bad"))
    client.tread("orders:0", "0", 1, group="shop2.bill")
    client.redis.set("app:shop2:members:bill", "{}")
    client.redis.set("app:shop:seen:bill:7", "x", px=100_000)
    with process(tidelog_server, folder, SOURCE) as worker:
        eventually(lambda: unfinished(run, "bill") == unfinished(run, "look") == 0 and unfinished(run, "book") == 1)
        before = client.redis.dbsize()
        listed = run("delete", "shop", "--dry-run", *url).output
        assert "is running on workers " in run("delete", "shop", "--yes", *url, ok=False).output
        assert client.redis.dbsize() == before
        worker.signal(signal.SIGTERM)
        worker.wait()
    assert "key    app:shop:members:bill\n" in listed
    assert "keys   1 of deduplicate\n" in listed
    assert "group  shop.look on orders:3\n" in listed
    assert re.search(r"group  shop\.book on orders:\d, 1 pending\n", listed)
    assert "shop2" not in listed
    epoch = client.redis.incr("app:shop:epoch")
    letters = client.tlen("orders.dead:0")
    assert client.redis.exists(*(line.split()[1] for line in listed.splitlines() if line.startswith("key ")))
    run("delete", "shop", *url, ok=False, text="n\n")
    assert client.redis.exists("app:shop:members:bill")
    output = run("delete", "shop", *url, text="y\n").output
    assert re.search(r"\d+ keys and 12 groups deleted\n$", output)
    assert set(client.redis.keys("app:*")) == {b"app:shop:epoch", b"app:shop2:members:bill"}
    assert [group.name for at in range(4) for group in client.tgroup_list(f"orders:{at}")] == [b"shop2.bill"]
    assert sum(client.tlen(f"orders:{at}") for at in range(4)) == 51
    assert client.tlen("orders.dead:0") == letters == 2
    with process(tidelog_server, folder, SOURCE):  # it begins anew
        eventually(lambda: client.tlen("orders.dead:0") == 2 * letters)
    assert client.redis.incr("app:shop:epoch") > epoch + 1


def test_delete_sees_a_worker_that_joins_meanwhile(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.redis.set("app:shop:members:bill", "{}")
    looked_at = deletion.find_state

    def find_state(client: Client, app: str) -> deletion.AppState:
        found = looked_at(client, app)
        if not found.alive:
            client.redis.incr("app:shop:epoch")
            client.redis.set("app:shop:lease:w", "w:1", px=10_000)
        return found

    monkeypatch.setattr(deletion, "find_state", find_state)
    with pytest.raises(AppError, match="is running on workers w"):
        deletion.delete(client, "shop")
    assert client.redis.exists("app:shop:members:bill")
