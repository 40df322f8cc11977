"""Worker processes and servers that are stopped, killed, paused: nothing is lost, and what must be once is once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.tidelog.workers.workerkit import Order, pending, process
from tests.waiting import eventually
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App

TURNS = 100 if os.environ.get("TIDELOG_LONG") else 12  # kills of a worker; every third one with one of the server

HEAD = """
import asyncio
import os
import time
import msgspec
from tidelog.client import Client
from tidelog.workers import *

class Order(msgspec.Struct):
    id: int
    key: str = "k"

app = App("shop", URL, lease=1.0, grace=5.0)
orders = app.topic("orders", Order, partition_by="key", partitions=4)
out = app.topic("out", Order, partition_by="id", partitions=3)
told = Client(URL)

def tell(what, order):
    told.tappend("told", {"what": what, "id": order.id, "key": order.key, "pid": os.getpid()})
"""

# Where the lease is not the subject: on a busy machine a short one ends now and then, and events come again.
LASTING = HEAD.replace("lease=1.0, grace=5.0", "lease=60.0, grace=60.0")

COPY = """
@app.each(orders, name="bill", transactional=True)
async def bill(event: Event[Order]) -> None:
    await event.send(out, event.record)
    if event.record.id % 20 == 0:
        await asyncio.sleep(0.01)
"""


def shop(server: Server) -> tuple[App, Topic[Order]]:
    """The app as its module declares it, to look at it from here."""
    app = App("shop", server.url, lease=1.0, grace=5.0)
    topic = app.topic("orders", Order, partition_by="key", partitions=4)

    @app.each(topic)
    async def bill(order: Order) -> None: ...

    return app, topic


def told(client: Client, what: str) -> list[tuple[str, int]]:
    """Keys and numbers of the events that handlers have told, in order."""
    entries = [entry for entry in client.trange("told") if entry["what"] == what.encode()]
    return [(entry["key"].decode(), int(entry["id"])) for entry in entries]


def send(topic: Topic[Order], count: int, first: int = 0) -> None:
    topic.sync.send_many(Order(number, f"k{number % 13}") for number in range(first, first + count))


def copies(client: Client) -> Counter[int]:
    """What was sent on, by number, how often."""
    return Counter(int(entry["id"]) for at in range(3) for page in client.pages(f"out:{at}") for entry in page)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_sigterm_finishes_what_is_in_work_and_gives_the_rest_back(
    tidelog_server: Server, tmp_path: Path, ordering: str
) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{LASTING}
@app.each(orders, name="bill", ordering={ordering!r} {", concurrency=8" if ordering != "partition" else ""})
async def bill(order: Order) -> None:
    tell("began", order)
    await asyncio.sleep(0.2)
    tell("ended", order)
"""
    with tidelog_server.client() as client:
        send(topic, 400)
        with process(tidelog_server, tmp_path, source) as worker:
            eventually(lambda: len(told(client, "began")) >= 5)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.log
        began, ended = told(client, "began"), told(client, "ended")
        assert Counter(began) == Counter(ended)
        assert len(began) < 400
        left = pending(client, app, "bill")
        now = int(time.time() * 1000) + 50
        for number in range(4):
            summary = client.tpending(f"orders:{number}", "shop.bill")
            assert summary.next_due is None or summary.next_due <= now  # given back: nobody has to wait
        assert left <= 400 - len(began)
        assert left > 0 or ordering == "none"  # of which no more is taken than can be begun
        with process(tidelog_server, tmp_path, source.replace("0.2", "0")):
            eventually(lambda: len(told(client, "ended")) >= 400)
            eventually(lambda: pending(client, app, "bill") == 0)
        assert Counter(told(client, "ended")) == Counter((f"k{number % 13}", number) for number in range(400))
        if ordering != "none":
            in_order(told(client, "began"))
    topic.close_sync()


def in_order(events: list[tuple[str, int]]) -> None:
    by_key = defaultdict(list)
    for key, number in events:
        by_key[key].append(number)
    for numbers in by_key.values():
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_a_worker_that_was_killed_is_followed_by_another(tidelog_server: Server, tmp_path: Path, ordering: str) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{HEAD}
@app.each(orders, name="bill", ordering={ordering!r})
async def bill(order: Order) -> None:
    await asyncio.sleep(0.002)
    tell("ended", order)
"""
    with tidelog_server.client() as client:
        send(topic, 600)
        for kill_at in (50, 200, 400):
            with process(tidelog_server, tmp_path, source) as worker:
                eventually(lambda limit=kill_at: len(told(client, "ended")) >= limit)  # type: ignore[misc]
                worker.signal(signal.SIGKILL)
                worker.wait()
        with process(tidelog_server, tmp_path, source):
            eventually(lambda: len(set(told(client, "ended"))) == 600)
            eventually(lambda: pending(client, app, "bill") == 0)
        firsts = list(dict.fromkeys(told(client, "ended")))
        if ordering != "none":
            in_order(firsts)
    topic.close_sync()


def test_a_server_that_was_killed_and_comes_back_loses_nothing(tidelog_server: Server, tmp_path: Path) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{LASTING}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    await asyncio.sleep(0.001)
    with open("seen.txt", "a") as file:
        file.write(f"{{order.id}}\\n")
"""
    seen = tmp_path / "seen.txt"

    def numbers() -> set[str]:
        return set(seen.read_text().split()) if seen.exists() else set()

    send(topic, 3000)
    with process(tidelog_server, tmp_path, source) as worker:
        for least in (100, 800):
            eventually(lambda limit=least: len(numbers()) >= limit)  # type: ignore[misc]
            tidelog_server.kill()
            tidelog_server.start()
        eventually(lambda: len(numbers()) == 3000)
        with tidelog_server.client() as client:
            eventually(lambda: pending(client, app, "bill") == 0)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log
    topic.close_sync()


@pytest.mark.long(short=True)
@pytest.mark.timeout(300 if TURNS == 12 else 1800)
def test_transactional_is_exactly_once_whatever_is_killed(tidelog_server: Server, tmp_path: Path) -> None:
    app, topic = shop(tidelog_server)
    chance = random.Random(7)
    total = 0

    with tidelog_server.client() as client:

        def reaches(limit: int) -> Callable[[], bool]:
            return lambda: sum(client.tlen(f"out:{at}") for at in range(3)) >= limit

        for turn in range(TURNS):
            send(topic, 2000, total)
            total += 2000
            before = sum(client.tlen(f"out:{at}") for at in range(3))
            with process(tidelog_server, tmp_path, HEAD + COPY) as worker:
                limit = before + chance.randrange(1, 1500)
                eventually(reaches(limit), worker.log)
                if turn % 3 == 0:
                    tidelog_server.kill()
                    tidelog_server.start()
                    limit += chance.randrange(1, 500)
                    eventually(reaches(limit), worker.log)
                worker.signal(signal.SIGKILL)
                worker.wait()
        with process(tidelog_server, tmp_path, HEAD + COPY) as worker:
            eventually(reaches(total), worker.log)
            eventually(lambda: pending(client, app, "bill") == 0)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.log
        assert copies(client) == Counter(range(total))
    topic.close_sync()


def test_a_paused_worker_that_comes_back_past_its_lease_does_nothing_with_what_it_held(
    tidelog_server: Server, tmp_path: Path
) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{HEAD.replace("lease=1.0", "lease=3.0")}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    tell("began", order)
    await asyncio.sleep(0.05)
    tell("ended", order)
"""

    def by_pid(what: str, pid: int) -> list[int]:
        return [
            int(entry["id"])
            for entry in client.trange("told")
            if entry["what"] == what.encode() and int(entry["pid"]) == pid
        ]

    with tidelog_server.client() as client:
        send(topic, 200)
        with process(tidelog_server, tmp_path, source) as first:
            eventually(lambda: len(by_pid("began", first.pid)) >= 8)
            with process(tidelog_server, tmp_path, source) as second:
                eventually(lambda: by_pid("began", second.pid))
                first.pause()
                begun = by_pid("began", first.pid)
                eventually(lambda: len(set(told(client, "ended"))) >= 200)
                eventually(lambda: pending(client, app, "bill") == 0)
                first.signal(signal.SIGCONT)
                total = 200
                while len(by_pid("began", first.pid)) == len(begun):  # until it takes part again
                    assert total < 20_000, first.log
                    send(topic, 40, total)
                    total += 40
                    eventually(lambda: len(set(told(client, "ended"))) >= total)  # noqa: B023
                eventually(lambda: pending(client, app, "bill") == 0)
                now = by_pid("began", first.pid)
                assert now[: len(begun)] == begun
                assert all(number >= 200 for number in now[len(begun) :])
                second.signal(signal.SIGTERM)
                assert second.wait() == 0, second.log
            first.signal(signal.SIGTERM)
            assert first.wait() == 0, first.log
    topic.close_sync()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_a_storm_of_joins_and_deaths_keeps_the_order_of_keys(
    tidelog_server: Server, tmp_path: Path, ordering: str
) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{HEAD.replace("lease=1.0", "lease=3.0")}
@app.each(orders, name="bill", ordering={ordering!r})
async def bill(order: Order) -> None:
    tell("ended", order)
    await asyncio.sleep(0.003)
"""
    chance = random.Random(11)
    with tidelog_server.client() as client, ExitStack() as stack:
        send(topic, 3000)
        workers = [stack.enter_context(process(tidelog_server, tmp_path, source)) for _ in range(2)]
        for turn in range(6):
            least = min(len(told(client, "ended")) + 50, 3000)
            workers.append(stack.enter_context(process(tidelog_server, tmp_path, source)))
            eventually(lambda least=least: len(told(client, "ended")) >= least)  # type: ignore[misc]
            worker = workers.pop(chance.randrange(len(workers)))
            worker.signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            worker.wait()
        eventually(lambda: len(set(told(client, "ended"))) == 3000)
        eventually(lambda: pending(client, app, "bill") == 0)
        in_order(list(dict.fromkeys(told(client, "ended"))))
        assert len(told(client, "ended")) < 6000  # what is done again is what was in hand
    topic.close_sync()


@pytest.mark.timeout(300)
def test_transactional_is_exactly_once_with_many_workers_that_stop_and_die(
    tidelog_server: Server, tmp_path: Path
) -> None:
    app, topic = shop(tidelog_server)
    chance = random.Random(5)
    total = 0
    with tidelog_server.client() as client, ExitStack() as stack:
        workers = [stack.enter_context(process(tidelog_server, tmp_path, HEAD + COPY)) for _ in range(2)]
        for turn in range(6):
            before = sum(copies(client).values())
            send(topic, 1500, total)
            total += 1500
            workers.append(stack.enter_context(process(tidelog_server, tmp_path, HEAD + COPY)))
            eventually(lambda least=before: sum(copies(client).values()) >= least + 300)  # type: ignore[misc]
            one = workers.pop(chance.randrange(len(workers)))
            if turn % 2:
                one.signal(signal.SIGKILL)
                one.wait()
            else:
                one.pause()
            eventually(lambda wanted=total: len(copies(client)) == wanted)  # type: ignore[misc]
            if not turn % 2:
                one.signal(signal.SIGCONT)
                workers.append(one)
        eventually(lambda: pending(client, app, "bill") == 0)
        assert copies(client) == Counter(range(total))
    topic.close_sync()


def test_sigterm_ends_a_worker_whose_server_is_away(tidelog_server: Server, tmp_path: Path) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{HEAD}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    if order.id == 0:
        tell("began", order)
    await asyncio.sleep(0.05)
"""
    send(topic, 500)
    topic.close_sync()
    with tidelog_server.client() as client, process(tidelog_server, tmp_path, source) as worker:
        eventually(lambda: told(client, "began"))
        tidelog_server.kill()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log
    tidelog_server.start()
    with tidelog_server.client() as client:
        left = pending(client, app, "bill")
        with process(tidelog_server, tmp_path, source):
            eventually(lambda: pending(client, app, "bill") == 0)
        assert left > 0


def test_a_worker_that_begins_while_the_server_is_away_waits_for_it(tidelog_server: Server, tmp_path: Path) -> None:
    _, topic = shop(tidelog_server)
    source = f"""{LASTING}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    tell("ended", order)
"""
    send(topic, 3)
    topic.close_sync()
    tidelog_server.kill()
    with process(tidelog_server, tmp_path, source) as waits, process(tidelog_server, tmp_path, source) as ends:
        eventually(lambda: "trying again until it answers" in waits.log, waits.log)
        eventually(lambda: "trying again until it answers" in ends.log)
        ends.signal(signal.SIGTERM)
        assert ends.wait() == 0, ends.log
        tidelog_server.start()
        with tidelog_server.client() as client:
            eventually(lambda: len(told(client, "ended")) == 3, waits.log)


def test_a_second_signal_cancels_what_is_in_work(tidelog_server: Server, tmp_path: Path) -> None:
    app, topic = shop(tidelog_server)
    source = f"""{LASTING}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    tell("began", order)
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        tell("cancelled", order)
        raise
"""
    send(topic, 1)
    patient = source.replace("grace=60.0", "grace=500.0")
    with tidelog_server.client() as client, process(tidelog_server, tmp_path, patient) as worker:
        eventually(lambda: told(client, "began"))
        worker.signal(signal.SIGTERM)
        eventually(lambda: "stopping" in worker.log)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1, worker.log
        assert told(client, "cancelled") == told(client, "began")
        assert pending(client, app, "bill") == 1
        assert client.tlen("orders.dead:0") == 0
    topic.close_sync()


def test_many_processes_and_what_cannot_start(tidelog_server: Server, tmp_path: Path) -> None:
    _, topic = shop(tidelog_server)
    source = f"""{LASTING}
@app.each(orders, name="bill")
async def bill(order: Order) -> None:
    await asyncio.sleep(0.01)
    tell("ended", order)
"""
    send(topic, 300)
    with tidelog_server.client() as client:
        with process(tidelog_server, tmp_path, source, "--workers", "2") as worker:
            eventually(lambda: len(set(told(client, "ended"))) == 300)
            eventually(lambda: len({entry["pid"] for entry in client.trange("told")}) == 2)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.log
        with process(tidelog_server, tmp_path, source.replace("partitions=4", "partitions=5")) as worker:
            assert worker.wait() == 1
            assert "partitions is 4 on the server, 5 here" in worker.log
            assert "Traceback" not in worker.log
        with process(tidelog_server, tmp_path, source, "--processors", "bil") as worker:
            assert worker.wait() == 1
            assert "has no processor 'bil'" in worker.log
    topic.close_sync()
