"""The waker: who has news is told, once; nothing is missed; what is idle costs next to nothing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.replication.proxy import Proxy
from tests.waiting import eventually
from tidelog import Client
from tidelog.client.entries import StreamId
from tidelog.testing import Server, free_port
from tidelog.transport import waker
from tidelog.transport.access import Access
from tidelog.transport.waker import Waker

Told = queue.Queue[str]
ZERO = StreamId(0)


@pytest.fixture
def told() -> Told:
    return queue.Queue()


@pytest.fixture
def wake(tidelog_server: Server, told: Told) -> Iterator[Waker]:
    with Waker(Access((tidelog_server.url,)), told.put) as wake:
        yield wake


def commands(client: Client) -> dict[str, int]:
    """How often each was called, without those of this test."""
    stats: dict[str, Any] = client.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}
    return {name: number for name, number in calls.items() if name.partition("|")[0] not in ("info", "config")}


def waiting(client: Client) -> int:
    """How many clients the server holds in TWAIT."""
    return int(client.redis.info("clients")["blocked_clients"])


def test_a_job_with_news_is_told_once(wake: Waker, told: Told, client: Client) -> None:
    first = client.tappend("a:0", {"n": 1})
    wake.watch("a", {"a:0": first, "a:1": ZERO})
    eventually(lambda: waiting(client) == 1)
    assert told.empty()
    client.tappend("a:1", {"n": 2})
    assert told.get(timeout=5) == "a"
    client.tappend("a:0", {"n": 3})
    eventually(lambda: waiting(client) == 0)
    assert told.empty()


def test_what_came_before_is_not_missed(wake: Waker, told: Told, client: Client) -> None:
    first = client.tappend("a:0", {"n": 1})
    client.tappend("a:0", {"n": 2})
    wake.watch("a", {"a:0": first})
    assert told.get(timeout=5) == "a"


def test_who_is_forgotten_is_not_told(wake: Waker, told: Told, client: Client) -> None:
    wake.watch("a", {"s": ZERO})
    wake.watch("b", {"s": ZERO})
    wake.forget("a")
    eventually(lambda: waiting(client) > 0)
    client.tappend("s", {"n": 1})
    assert told.get(timeout=5) == "b"
    eventually(lambda: waiting(client) == 0)
    assert told.empty()


def test_more_jobs_than_lines_join_at_once(wake: Waker, told: Told, client: Client) -> None:
    for number in range(50):
        wake.watch(str(number), {f"s{number}": ZERO})
        wake.watch(f"late {number}", {f"late {number}": ZERO})
    for number in range(50):
        client.tappend(f"late {number}", {"n": 1})
    begun = time.monotonic()
    assert {told.get(timeout=4) for _ in range(50)} == {f"late {number}" for number in range(50)}
    assert time.monotonic() - begun < waker.YOUNG_WAIT_MS / 1000  # not by the end of somebody's wait
    eventually(lambda: 0 < waiting(client) <= waker.YOUNG)
    for number in range(50):
        client.tappend(f"s{number}", {"n": 1})
    assert {told.get(timeout=4) for _ in range(50)} == {str(number) for number in range(50)}


def test_a_server_that_is_killed(wake: Waker, told: Told, client: Client, tidelog_server: Server) -> None:
    wake.watch("a", {"a": ZERO})
    eventually(lambda: waiting(client) == 1)
    tidelog_server.kill()
    wake.watch("b", {"b": ZERO})
    tidelog_server.start()
    client.redis.connection_pool.disconnect()
    client.tappend("a", {"n": 1})
    assert told.get(timeout=10) == "a"
    client.tappend("b", {"n": 1})
    assert told.get(timeout=10) == "b"


def test_a_line_that_is_dead_is_noticed(
    tidelog_server: Server, told: Told, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is closed, nothing arrives: as when a machine is gone."""
    monkeypatch.setattr(waker, "YOUNG_WAIT_MS", 300)
    monkeypatch.setattr(waker, "GRACE", 0.3)
    with (
        Proxy(free_port(), tidelog_server.port) as proxy,
        Waker(Access((f"redis://127.0.0.1:{proxy.port}",)), told.put) as wake,
    ):
        wake.watch("a", {"a": ZERO})
        eventually(lambda: waiting(client) == 1)
        proxy.down.swallow(after=0)
        client.tappend("a", {"n": 1})
        assert told.get(timeout=10) == "a"
        assert proxy.down.fired.is_set()


def test_a_key_that_is_no_stream_does_not_hold_up_others(wake: Waker, told: Told, client: Client) -> None:
    client.redis.set("text", "x")
    wake.watch("bad", {"text": ZERO})
    wake.watch("good", {"s": ZERO})
    assert told.get(timeout=5) == "bad"
    client.tappend("s", {"n": 1})
    assert told.get(timeout=5) == "good"


@pytest.mark.slow
def test_hundreds_of_idle_jobs_cost_a_few_commands(
    tidelog_server: Server, told: Told, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker, "YOUNG_WAIT_MS", 1000)
    monkeypatch.setattr(waker, "OLD", 0.8)
    with Waker(Access((tidelog_server.url,)), told.put) as wake:
        for number in range(300):
            wake.watch(str(number), {f"s{number}:{at}": ZERO for at in range(16)})
        time.sleep(4)  # they grow old
        eventually(lambda: waiting(client) == 2)  # 4,800 keys, of which one line takes 4,000
        client.redis.config_resetstat()
        busy = time.process_time()
        time.sleep(3)
        assert time.process_time() - busy < 0.3  # a tenth of a core, this process's other threads included
        assert sum(commands(client).values()) <= 3, commands(client)
        client.redis.config_resetstat()
        for number in range(0, 300, 10):  # and they wake up as fast as others
            begun = time.monotonic()
            client.tappend(f"s{number}:{number % 16}", {"n": 1})
            assert told.get(timeout=5) == str(number)
            assert time.monotonic() - begun < 2
        assert commands(client)["twait"] <= 2 * 30
        assert told.empty()


@pytest.mark.slow
def test_nothing_is_missed_while_many_come_and_go(
    tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that read what they are told of, and writers: in the end each job has read all that was written."""
    monkeypatch.setattr(waker, "YOUNG_WAIT_MS", 60)
    monkeypatch.setattr(waker, "OLD_WAIT_MS", 200)
    monkeypatch.setattr(waker, "OLD", 0.05)
    jobs = 40
    at = [ZERO] * jobs
    woken: Told = queue.Queue()
    stop = threading.Event()
    with Waker(Access((tidelog_server.url,)), woken.put) as wake, tidelog_server.client() as reader:

        def read() -> None:
            while not stop.is_set():
                try:
                    number = int(woken.get(timeout=0.1))
                except queue.Empty:
                    continue
                entries = reader.trange(f"s{number}", f"({at[number]}")
                if entries:
                    at[number] = entries[-1].id
                wake.watch(str(number), {f"s{number}": at[number]})

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(jobs):
            wake.watch(str(number), {f"s{number}": ZERO})
        last = [ZERO] * jobs
        for turn in range(1500):
            number = turn * 7 % jobs
            last[number] = client.tappend(f"s{number}", {"n": turn})
            if turn % 50 == 0:
                time.sleep(0.06)
        try:
            eventually(lambda: at == last, seconds=5)
        finally:
            stop.set()
            thread.join()
