"""The overview of a cluster: its groups and members, sums, failures, the coordinator, rights, and the plots."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browserkit import Page
from tests.replication.cluster import cluster, wait_until
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.console.clusterkit import add_users, plain, url_of
from tests.tidelog.console.consolekit import PASSWORD, ConsoleBench, Visitor, bench_of, visit
from tests.waiting import until
from tidelog.client import Client
from tidelog.console import clusterconnection, history
from tidelog.console.application import ConsoleServer
from tidelog.console.infotext import ServerInfo, summed
from tidelog.console.recorder import HistoryRecorder
from tidelog.console.sessions import ConsoleSessions
from tidelog.transport.access import Access
from tidelog.transport.slots import SLOTS

A, B = keys_of_both(2)


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    """Group 1 has two members, and group 2 has one."""
    with cluster() as servers:
        made = Groups(servers)
        made.groups[0].add()
        made.groups[0].wait(members=2)
        wait_until(lambda: len(made.agree()["groups"]["1"]["members"]) == 2, "a map with both members")
        add_users(made, "ann")
        with Client(url_of(made)) as client:
            for key in (A[0], A[1], B[0]):
                client.tmappend(key, ["n"], [(1,), (2,)])
        yield made


async def overview(visitor: Visitor) -> str:
    _, page, _ = await visitor.get("/")
    return plain(page)


def test_sums_of_servers() -> None:
    one = {
        "run_id": "a",
        "tidelog_version": "1",
        "used_memory": "5",
        "log_last_sync_us": "7",
        "db0": "keys=2,expires=0",
    }
    found = summed([ServerInfo({**one, "x": "1"}), ServerInfo({**one, "run_id": "b", "maxmemory": "0"})])
    assert (found.number("used_memory"), found.number("log_last_sync_us"), found.keys) == (10, 7, 4)
    assert (found.number("x"), found.number("maxmemory"), found.word("tidelog_version")) == (None, None, "1")
    again = summed([ServerInfo({**one, "run_id": "b"}), ServerInfo(one)])
    assert again.word("run_id") == found.word("run_id") != "a"
    assert summed([ServerInfo(one)]).keys == 2
    assert summed([]).keys is None


@pytest.mark.parametrize("at", [0, 1, 2])
def test_all_groups_and_members_are_shown(groups: Groups, at: int) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        text = await overview(visitor)
        assert "The numbers are sums over the leaders of 2 server groups." in text
        for node, name in zip(groups.nodes, ("1a", "1b", "2a"), strict=True):
            assert re.search(rf"{name} {name[0]} (leading|following) yes 127.0.0.1:{node.port} ", text), text
        assert re.search(r"1 good 8,192 0-8191 1[ab] 2 of 2 [0-9]", text)
        assert re.search(r"2 good 8,192 8192-16383 2a 1 of 1 [0-9]", text)
        for name in ("1a", "1b", "2a"):
            status, page, _ = await visitor.get(f"/overview/member?name={name}")
            assert (status, f"Member {name}" in plain(page)) == (200, True)
        assert (await visitor.get("/overview/member?name=127.0.0.1:1"))[0] == 404
        assert "of the leaders, as of now" in (await visitor.get("/overview/clients"))[1]

    visit(url_of(groups, at), test)


def test_a_group_and_a_member_that_do_not_reply(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusterconnection, "GROUP_MS", 1000)
    monkeypatch.setattr(clusterconnection, "RECHECK", 0.1)
    follower = groups.groups[0].others(groups.leader(1))[0]
    name, last = groups.groups[0].name(follower), groups.groups[1].nodes[0]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        async def shows(words: str) -> bool:
            return words in await overview(visitor)

        await visitor.log_in()
        follower.freeze()
        try:
            await until(lambda: shows(f"{name} 1 no reply no reply within 1 second"))
            assert await shows("The numbers are sums over the leaders of 2 server groups.")
        finally:
            follower.thaw()
        await until(lambda: shows(f"{name} 1 following yes"))
        last.freeze()
        try:
            reason = "(2a: no reply within 1 second)"
            await until(lambda: shows(f"group 2 has no leader that replies, its slots are not served {reason}"))
            assert await shows("sums over 1 of 2 server groups : the others have not replied")
            assert await shows("2 no leader 8,192 8192-16383 ")
        finally:
            last.thaw()
        await until(lambda: shows("The numbers are sums over the leaders of 2 server groups."))

    visit(url_of(groups), test)
    groups.agree()


def test_a_coordinator_that_is_unavailable(groups: Groups) -> None:
    folder = Path(str(groups.groups[0].nodes[0].config["coordinator"]).removeprefix("file://"))
    away = folder.with_name("away")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        async def shows(words: str) -> bool:
            return words in await overview(visitor)

        await visitor.log_in()
        os.rename(folder, away)
        try:
            await until(lambda: shows(f"the coordinator file://{folder} is unavailable"))
        finally:
            os.rename(away, folder)
        await until(lambda: shows("1 good 8,192"))
        await until(lambda: shows("2 good 8,192"))

    visit(url_of(groups), test)
    groups.agree()


def test_without_permission_for_the_map(groups: Groups) -> None:
    add_users(groups, "narrow", "~*", "+@connection", "+info", "+cluster", "+command")
    addresses = [groups.leader(each).port for each in (1, 2)]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in("narrow")
        text = await overview(visitor)
        assert "Names of groups, replicas, and changes can't be shown: NOPERM" in text
        assert "The numbers are sums over the leaders of 2 server groups." in text
        for port in addresses:
            assert f"127.0.0.1:{port} good 8,192" in text

    visit(url_of(groups), test)


def test_samples_are_sums_and_stop_while_a_group_is_gone(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(clusterconnection, "GROUP_MS", 1000)
    last = groups.groups[1].nodes[0]

    def appended() -> list[int]:
        return [int(groups.leader(each).info("all")["stream_entries_added"]) for each in (1, 2)]

    async def main() -> None:
        sessions = ConsoleSessions(Access.of(url_of(groups)))
        session = await sessions.log_in("ann", PASSWORD, "1")
        recorder = HistoryRecorder(sessions, interval=0)
        before = appended()
        await until(lambda: recorder.record(session))
        with Client(url_of(groups)) as client:
            newest: Any = client.redis.xrevrange(history.KEY, count=1)
        found = int(newest[0][1][b"appended"])
        assert max(before) < sum(before) <= found <= sum(appended())
        last.freeze()
        try:
            assert not await recorder.record(session)
        finally:
            last.thaw()
        await until(lambda: recorder.record(session))
        sessions.end_all()

    asyncio.run(main())


# -- in a browser ------------------------------------------------------------------------------------------------------
LIVE = "document.querySelector('#live')?.dataset.state === 'live'"
PLOTS = "document.querySelectorAll('.plot .u-over').length === 8"


@pytest.fixture(scope="module")
def bench(groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBench]:
    with bench_of(groups.nodes[0], tmp_path_factory.mktemp("console")) as bench:
        yield bench


async def text_of(page: Page, selector: str) -> str:
    return str(await page.run(f"document.querySelector({selector!r}).innerText"))


@pytest.mark.slow
def test_in_a_browser(groups: Groups, bench: ConsoleBench) -> None:
    """A page that is open follows a failover and a move, and a stream continues at its new owner."""

    async def test() -> None:
        page = await bench.log_in()
        await bench.inspect("/", ready=f"{LIVE} && {PLOTS}")
        await bench.inspect("/overview/member?name=1a", ready=LIVE)
        await page.go(bench.console.url)
        await page.until(LIVE)
        leader = groups.leader(1)
        name, other = groups.groups[0].name(leader), groups.groups[0].name(groups.groups[0].others(leader)[0])
        leader.kill()
        rows = "[...document.querySelectorAll('#part-members tbody tr')].map((each) => each.innerText)"
        await page.until(f"{rows}.some((each) => each.startsWith({name!r}) && each.includes('Connection refused'))")
        await page.until(f"{rows}.some((each) => each.startsWith({other!r}) && each.includes('leading'))")
        await bench.inspect("/", ready=f"{LIVE} && {rows}.some((each) => each.includes('no reply'))")
        leader.start()
        add_users(groups, "ann")
        await page.until(f"{rows}.filter((each) => each.includes('yes')).length === 3")
        await page.go(f"{bench.console.url}/streams/stream?key={A[1]}")
        count = "document.querySelectorAll('#entries tr').length"
        await page.until(f"{count} === 2")
        await page.click("#follow")
        await asyncio.to_thread(groups.move, f"0-{SLOTS // 2 - 1}", to="2", at="1")
        with Client(url_of(groups)) as client:
            client.tappend(A[1], {"n": 3})
        await page.until(f"{count} === 3")
        await page.go(bench.console.url)
        await page.until(f"{LIVE} && document.querySelector('#part-groups').innerText.includes('no slots')")

    bench.run(test())
    bench.check("503", "ERR_INCOMPLETE_CHUNKED_ENCODING")
