"""The source's watch: an idle query asks nothing, and misses nothing."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.waiting import eventually
from tidelog import Client
from tidelog.spark import watch
from tidelog.spark.offsets import ZERO, Offsets
from tidelog.spark.options import for_source
from tidelog.spark.optionvalues import STREAM, OptionValues
from tidelog.testing import Server

KEYS = [f"s{n}" for n in range(4)]


@pytest.fixture
def make(tidelog_server: Server) -> Iterator[Callable[..., Offsets]]:
    made: list[Offsets] = []

    def make(url: str = tidelog_server.url, **options: str) -> Offsets:
        source = for_source(OptionValues({"url": url} | (options or {"subscribe": ",".join(KEYS)})), STREAM)
        made.append(Offsets(source))
        return made[-1]

    yield make
    for offsets in made:
        offsets.close()


def calls_of(client: Client, command: str, which: str = "calls") -> int:
    stats = str(client.redis.info("commandstats").get(f"cmdstat_{command}", ""))
    found = re.search(rf"'{which}': (\d+)", stats)
    return int(found[1]) if found else 0


def until_quiet(offsets: Offsets) -> None:
    """Ask as Spark does, until the server waits for us."""
    eventually(lambda: offsets.lasts() and offsets._watch.quiet())


def test_an_idle_query_asks_nothing_and_sees_the_next_entry(make: Callable[..., Offsets], client: Client) -> None:
    first = client.tappend("s1", {"n": 1})
    offsets = make()
    until_quiet(offsets)
    before = calls_of(client, "tread")
    for _ in range(100):
        assert offsets.lasts() == {"s0": ZERO, "s1": first, "s2": ZERO, "s3": ZERO}
        time.sleep(0.002)
    assert calls_of(client, "tread") - before <= len(KEYS), "one round at most: the wait may have timed out"
    last = client.tappend("s3", {"n": 2})
    eventually(lambda: offsets.lasts()["s3"] == last)
    until_quiet(offsets)
    assert offsets.lasts()["s1"] == first
    eventually(lambda: client.redis.info("clients")["blocked_clients"] == 1)


def test_while_entries_come_nothing_waits(make: Callable[..., Offsets], client: Client) -> None:
    offsets = make()
    before = calls_of(client, "twait")
    for number in range(10):
        last = client.tappend("s0", {"n": number})
        assert offsets.lasts(fresh=True)["s0"] == last
    assert calls_of(client, "twait") == before


def test_a_deleted_stream_is_noticed_when_the_wait_times_out(
    make: Callable[..., Offsets], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WAIT_MS", 300)
    client.tappend("s0", {"n": 1})
    offsets = make()
    until_quiet(offsets)
    client.redis.delete("s0")
    eventually(lambda: offsets.lasts()["s0"] == ZERO)


def test_new_keys_of_a_pattern_are_noticed(make: Callable[..., Offsets], client: Client) -> None:
    client.tappend("s0", {"n": 1})
    offsets = make(subscribePattern="s.*")
    until_quiet(offsets)
    last = client.tappend("s9", {"n": 1})
    eventually(lambda: offsets.lasts().get("s9") == last)


def test_a_user_that_may_not_wait_asks_until_it_may(
    make: Callable[..., Offsets], client: Client, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.redis.execute_command("ACL", "SETUSER", "al", "on", ">pw", "~*", "+@all", "-twait")
    offsets = make(url=tidelog_server.url.replace("://", "://al:pw@"))
    eventually(lambda: offsets.lasts() and calls_of(client, "twait", "rejected_calls") == 1)
    last = client.tappend("s0", {"n": 1})
    eventually(lambda: offsets.lasts()["s0"] == last)
    assert client.redis.info("clients")["blocked_clients"] == 0
    for _ in range(100):
        offsets.lasts()
    assert calls_of(client, "twait", "rejected_calls") == 1
    client.redis.execute_command("ACL", "SETUSER", "al", "+twait")
    now = time.monotonic
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now() + watch.REFUSED))
    until_quiet(offsets)
    eventually(lambda: client.redis.info("clients")["blocked_clients"] == 1)


def test_a_string_among_the_streams_is_an_error(make: Callable[..., Offsets], client: Client) -> None:
    offsets = make()
    until_quiet(offsets)
    client.redis.set("s2", "a string")
    with pytest.raises(Exception, match=r"WRONGTYPE .*'s2'"):
        eventually(lambda: offsets.lasts() is None)


def test_a_server_that_restarts(make: Callable[..., Offsets], tidelog_server: Server) -> None:
    offsets = make()
    until_quiet(offsets)
    tidelog_server.restart()
    with tidelog_server.client() as client:
        last = client.tappend("s0", {"n": 1})
    eventually(lambda: offsets.lasts()["s0"] == last)


def test_a_server_that_stops_answering_is_asked(
    make: Callable[..., Offsets], tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the wait never comes: the query must not take the silence for peace."""
    monkeypatch.setattr(watch, "WAIT_MS", 100)
    monkeypatch.setattr(watch, "GRACE_MS", 100)
    offsets = make()
    until_quiet(offsets)
    os.kill(tidelog_server.pid, signal.SIGSTOP)
    try:
        time.sleep(0.3)
        asking = threading.Thread(target=offsets.lasts)
        asking.start()
        asking.join(0.2)
        assert asking.is_alive(), "it waits for an answer"
    finally:
        os.kill(tidelog_server.pid, signal.SIGCONT)
    asking.join(20)
    assert not asking.is_alive()
