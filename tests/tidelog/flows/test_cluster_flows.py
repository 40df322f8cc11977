"""Flows over two server groups: streams of both, moves of slots, a leader that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.flows.serverkit import in_loop, running
from tests.tidelog.flows.servicekit import hosted
from tests.waiting import until
from tidelog import Client
from tidelog.client.steps import run
from tidelog.flows import Flow
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.tidelog import entrywaiter
from tidelog.flows.declare import op
from tidelog.flows.service import flowstatus, publisher, samples
from tidelog.flows.service.desired import changing, decoded, key_of
from tidelog.flows.service.history import FlowHistory
from tidelog.flows.service.publisher import FlowPublisher
from tidelog.topics import deadletters
from tidelog.transport.slots import slot_of

KEYS = [f"in:{number}" for number in range(4)]
OUT = [f"out:{number}" for number in range(4)]
RECONNECT = {"retry": {"first": "50ms", "most": "200ms"}}


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    for group in ("1", "2"):
        groups.leader(group).say("FLUSHALL")
    with Client(groups.url(5)) as made:
        yield made


def copying(url: str, **options: Any) -> Flow:
    """Copies entries of four streams to four streams: the field ``to`` is the number of the stream."""
    made = Flow("copy", server=url, drain_timeout="10s")
    made.connector("in", "stream", key=KEYS, group="copy", retry="2s", reconnect=RECONNECT, **options)
    made.connector("out", "stream", key="out:{to}", reconnect=RECONNECT)
    made.connect("in -> out")
    return made


def fill(client: Client, start: int, count: int) -> None:
    """Append numbers to all input streams; each number goes to the output of its input."""
    for at, key in enumerate(KEYS):
        client.tmappend(key, ["n", "to"], [[str(number), str(at)] for number in range(start, start + count)])


def numbers(client: Client) -> list[list[int]]:
    """The numbers in each output stream."""
    return [[int(entry["n"]) for page in client.pages(key) for entry in page] for key in OUT]


def complete(client: Client, count: int) -> bool:
    """Whether every number is in each output stream. An entry can be there twice, if it was redelivered."""
    return all(set(found) == {*range(count)} for found in numbers(client))


def check(found: list[list[int]], count: int) -> None:
    """Every number is in each stream. The first occurrences are in order, and a repetition is in order, too."""
    for stream in found:
        assert list(dict.fromkeys(stream)) == [*range(count)]


async def all_read(client: Client) -> None:
    def settled() -> bool:
        states = [group for key in KEYS for group in client.tgroup_list(key)]
        return len(states) == len(KEYS) and all(each.pending == 0 for each in states)

    await until(lambda: asyncio.to_thread(settled), "no entry is pending")


def waits(groups: Groups) -> set[bytes]:
    """The addresses of the connections on which a TWAIT is in progress, if there is one on each group."""
    found = [
        {line.split()[1] for line in groups.leader(each).say("CLIENT", "LIST").splitlines() if _is_wait(line)}
        for each in (1, 2)
    ]
    return set.union(*found) if all(found) else set()


def _is_wait(line: bytes) -> bool:
    return b"cmd=twait" in line and b"flags=b" in line


def test_both_groups_have_streams() -> None:
    for keys in (KEYS, OUT):
        assert len({slot_of(key) // 8192 for key in keys}) == 2


@in_loop
async def test_streams_of_both_groups(groups: Groups, client: Client) -> None:
    async with running(copying(groups.url(5))):
        for round_ in range(3):
            fill(client, round_ * 50, 50)
            await until(lambda: complete(client, 50 * (round_ + 1)))  # noqa: B023
        await all_read(client)
    check(numbers(client), 150)


@in_loop
async def test_a_source_that_waits_for_both_groups(
    groups: Groups, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is read at once after the source has waited for longer than WARM."""
    monkeypatch.setattr(entrywaiter, "WARM", 0.05)
    monkeypatch.setattr(entrywaiter, "LONG", 600.0)
    async with running(copying(groups.url(5))):
        await until(lambda: waits(groups), "a long TWAIT")
        for at, key in enumerate(KEYS):
            client.tappend(key, {"n": "0", "to": str(at)})
            await until(lambda: 0 in numbers(client)[at])  # noqa: B023


@in_loop
async def test_a_wait_continues_after_the_other_group_has_replied(
    groups: Groups, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of the waits remain the same."""
    monkeypatch.setattr(entrywaiter, "WARM", 600.0)
    monkeypatch.setattr(entrywaiter, "LONG", 600.0)
    async with running(copying(groups.url(5))):
        await until(lambda: waits(groups), "a TWAIT on both groups")
        before = waits(groups)
        for number in range(12):
            at = number % 4
            client.tappend(KEYS[at], {"n": str(number // 4), "to": str(at)})
            await until(lambda: number // 4 in numbers(client)[at])  # noqa: B023
        await until(lambda: waits(groups), "a TWAIT on both groups")
        assert waits(groups) == before


@asynccontextmanager
async def filling(client: Client, filled: list[int]) -> AsyncIterator[None]:
    """Append numbers all the time, and count them."""
    stopping = threading.Event()

    def fill_on() -> None:
        while not stopping.wait(0.01):
            fill(client, filled[0], 10)
            filled[0] += 10

    task = asyncio.create_task(asyncio.to_thread(fill_on))
    try:
        yield
    finally:
        stopping.set()
        await task


def moved(groups: Groups, keys: list[str]) -> None:
    """Move the slot of each key to the other group."""
    for key in keys:
        at = groups.owner(key)
        groups.move(str(slot_of(key)), to="2" if at == "1" else "1", at=at)


@in_loop
async def test_slots_that_move(groups: Groups, client: Client) -> None:
    """Streams of the source and of the sink move there and back. The order of each of them is that of its input."""
    filled = [0]
    async with running(copying(groups.url(5))):
        async with filling(client, filled):
            await until(lambda: sum(map(len, numbers(client))) > 100)
            for _ in range(2):
                await asyncio.to_thread(moved, groups, [KEYS[0], OUT[1], OUT[2], KEYS[3]])
        await until(lambda: complete(client, filled[0]))
        check(numbers(client), filled[0])
        await all_read(client)


@in_loop
async def test_a_leader_that_is_killed() -> None:
    with cluster() as servers:
        groups = Groups(servers, members=2)
        url = groups.url(5)
        with Client(url) as client:
            async with running(copying(url)):
                fill(client, 0, 50)
                await until(lambda: sum(map(len, numbers(client))) >= 200)
                groups.leader(2).kill()
                await until(lambda: asyncio.to_thread(filled_once, client, 50))
                await until(lambda: complete(client, 100))
                check(numbers(client), 100)
                await all_read(client)


def filled_once(client: Client, start: int) -> bool:
    """Append the numbers that are not there yet: a call that is repeated after a failover may have been executed."""
    try:
        for at, key in enumerate(KEYS):
            there = {int(entry["n"]) for page in client.pages(key) for entry in page}
            left = [number for number in range(start, start + 50) if number not in there]
            if left:
                client.tmappend(key, ["n", "to"], [[str(number), str(at)] for number in left])
    except (redis.ConnectionError, redis.ResponseError, redis.TimeoutError):
        return False
    return True


async def rejecting(event: Event) -> None:
    raise RejectError(f"not {event.value['n']}")


@in_loop
async def test_dead_letters_of_both_groups(groups: Groups, client: Client) -> None:
    flow = Flow("broken", server=groups.url(5))
    flow.connector("in", "stream", key=KEYS, group="copy", retry="2s", on_error=["dead_letter"], reconnect=RECONNECT)
    flow.connector("out", rejecting)
    flow.connect("in -> out")
    fill(client, 0, 5)
    async with running(flow):
        await all_read(client)
    letters = [deadletters.read(each) for each in run(client, deadletters.page("flow.broken.dead"))[0]]
    assert sorted((each.topic, each.message) for each in letters) == sorted(
        (key, f"out: not {number}") for key in KEYS for number in range(5)
    )


@in_loop
async def test_a_wal_and_marks_of_both_groups(groups: Groups, client: Client) -> None:
    """The stream of the WAL moves while it is in use; duplicates are found by keys of both groups."""
    url, total = groups.url(5), 4000

    async def counting() -> AsyncIterator[dict[str, int]]:
        for number in range(total):
            yield {"n": number // 2}
            if number % 100 == 0:
                await asyncio.sleep(0.02)

    flow = Flow("orders", server=url)
    flow.connector("in", counting)
    flow.connector("log", "wal", reconnect=RECONNECT)
    flow.pipeline("once", op("dedup", "n"))
    flow.connector("out", "stream", key="out:0", reconnect=RECONNECT)
    flow.connect("in -> log -> once -> out")
    async with running(flow) as made:
        await until(lambda: client.tlen("out:0") > 100)
        await asyncio.to_thread(moved, groups, ["flow:orders:wal:log", "out:0"])
        await until(lambda: client.tlen("out:0") >= total // 2 and client.tlen("flow:orders:wal:log") == 0)
        assert made.graph.sources["in"].counts["ok"] == total
    assert list(dict.fromkeys(numbers(client)[0])) == [*range(total // 2)]


FLOWS = """
flows:
  main:
    connectors: {in: {type: stream, key: [in:0, in:1, in:2, in:3], group: copy}, out: {type: "null"}}
    pipelines: {p: [passthrough]}
    connect: [in -> p -> out]
"""


@pytest.mark.parametrize("slots_of", [1, 2])
@in_loop
async def test_the_keys_of_the_service(
    slots_of: int, groups: Groups, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The desired state, the status, the history, and a flow that was deployed, with a name in either group."""
    monkeypatch.setattr(publisher, "FOLLOW", 0.02)
    monkeypatch.setattr(publisher, "WRITE", 0.02)
    name = next(name for number in range(99) if slot_of(key_of(name := f"shop-{number}")) // 8192 == slots_of - 1)
    given = {"connectors": {"in": "null", "out": "null"}, "pipelines": {"p": []}, "connect": ["in -> p -> out"]}

    def document() -> Any:
        raw: Any = client.redis.get(key_of(name))
        return decoded(key_of(name), raw)

    def statuses() -> dict[str, str]:
        found = run(client, flowstatus.read(name, document().processes))
        return {flow.alias: flow.status for process in found for flow in process.flows}

    fill(client, 0, 5)
    async with hosted(FLOWS, groups.url(5), name=name) as host, FlowPublisher(host):
        history = FlowHistory(host, "one")
        await all_read(client)
        await host.deploy("more", given)
        await until(lambda: statuses() == {"main": "running", "more": "running"})
        await history.take()
        assert (await history.chart("main", 5))["stored"]
        assert client.tlen(samples.key_of(name, "main")) == 1
        assert history.recent("main")[0].lag == 0
        await asyncio.to_thread(moved, groups, [key_of(name)])
        run(client, changing(name, lambda kept: kept.set("main", "main", "paused")))
        await until(lambda: statuses().get("main") == "paused")
    assert [*document().deployed] == ["more"]
    async with hosted(FLOWS, groups.url(5), name=name) as host:
        assert {each: host.flows[each].status for each in host.flows} == {"main": "paused", "more": "running"}
