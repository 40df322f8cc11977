"""A console of two groups of a cluster: lists, streams, topics, changes, moved slots, groups that fail, rights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.console.clusterkit import add_users, plain, url_of
from tests.tidelog.console.consolekit import ALL, PASSWORD, Visitor, visit
from tests.tidelog.workers.workerkit import working
from tests.waiting import until
from tidelog.client import Client
from tidelog.console import clusterconnection, keynames
from tidelog.console.application import ConsoleServer
from tidelog.topics import Topic
from tidelog.transport.call import Call
from tidelog.transport.routedconnection import MemberConnection
from tidelog.transport.slots import SLOTS, slot_of
from tidelog.workers import App, DeadLetter

A, B = keys_of_both(8)  # of the lower and the upper half of the slots
HALF = f"{SLOTS // 2}-{SLOTS - 1}"


class Order(msgspec.Struct):
    id: int


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with cluster() as servers:
        made = Groups(servers)
        add_users(made, "ann")
        with Client(url_of(made)) as client:
            for key in (*A, *B):
                client.tappend(key, {"n": 1})
                client.tread(key, "0", 1, group="readers", retry=60_000)
        orders: Topic[Order] = Topic("sales", Order, partitions=8, url=url_of(made))
        orders.sync.send_many(Order(number) for number in range(16))
        orders.close_sync()
        yield made


async def log_in(visitor: Visitor, user: str) -> int:
    """Log in with a new session. Returns the status."""
    visitor.session.cookie_jar.clear()
    return (await visitor.log_in(user))[0]


@pytest.mark.parametrize("at", [0, 1])
def test_lists_have_the_keys_of_both_groups(groups: Groups, at: int) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, html, _ = await visitor.get("/streams")
        for key, group in ((A[0], "1"), (B[0], "2")):
            assert f"{key} {group} 1 " in plain(html)
        _, html, _ = await visitor.get("/topics")
        assert re.search(r"sales 8 16 ", plain(html))
        assert "missing" not in html
        _, html, _ = await visitor.get("/topics/topic?name=sales")
        assert set(re.findall(r"sales:\d (\d) \d", plain(html))) == {"1", "2"}
        _, html, _ = await visitor.get("/topics/records?name=sales")
        assert html.count('aria-label="Partition ') == 16
        _, html, _ = await visitor.get("/groups")
        assert f"readers {len(A + B)} " in plain(html)
        _, html, _ = await visitor.get("/deadletters")
        assert 'class="problem"' not in html

    visit(url_of(groups, at), test)


def test_a_search_examines_one_group_after_the_other(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keynames, "FOUND", 1)
    monkeypatch.setattr(keynames, "SCANNED", 3)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        _, html, _ = await visitor.get("/streams?pattern=key:")
        seen = html
        while found := re.search(r'hx-get="(/streams/rows\?[^"]*)"', html):
            _, html, _ = await visitor.get(found[1].replace("&amp;", "&"))
            seen += html
        assert {key for key in (*A, *B) if f">{key}<" in seen} == {*A, *B}
        _, html, _ = await visitor.get("/streams/rows?pattern=key:&cursor=1.1.7&examined=9")
        assert "have changed. Search again." in html
        _, html, _ = await visitor.get("/streams/rows?pattern=key:&cursor=nonsense&examined=9")
        assert "have changed. Search again." in html

    monkeypatch.setattr(keynames.scan, "__defaults__", ("stream", 1))
    visit(url_of(groups), test)


def test_changes_are_sent_to_the_owner(groups: Groups) -> None:
    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        csrf = await visitor.csrf()
        for key in (A[1], B[1]):
            form = {"csrf": csrf, "field": "n", "value": "2"}
            status, html, _ = await visitor.post(f"/streams/append?key={key}", form)
            assert status == 200, html
            _, html, _ = await visitor.get(f"/streams/group?key={key}&group=readers")
            (pending,) = set(re.findall(r'name="id" value="([^"]+)"', html))
            status, html, _ = await visitor.post(
                f"/streams/group/settle?key={key}&group=readers", {"csrf": csrf, "id": pending, "action": "ack"}
            )  # fmt: skip
            assert status == 200, html
        with Client(url_of(groups)) as client:
            for key in (A[1], B[1]):
                assert client.tlen(key) == 2
                assert client.tinfo(key).pending == 0

    visit(url_of(groups), test)


def test_slots_move_while_a_session_is_open(groups: Groups) -> None:
    """The slots of a group move to the other one, and then half of them back. The session follows."""

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        csrf = await visitor.csrf()
        for at, to, ranges in (("1", "2", f"0-{SLOTS // 2 - 1}"), ("2", "1", f"0-{SLOTS // 2 - 1}")):
            await asyncio.to_thread(groups.move, ranges, to=to, at=at)
            for key in (A[2], B[2]):
                status, html, _ = await visitor.get(f"/streams/stream?key={key}")
                assert status == 200, html
                form = {"csrf": csrf, "field": "n", "value": "3"}
                assert (await visitor.post(f"/streams/append?key={key}", form))[0] == 200
            _, html, _ = await visitor.get("/streams")
            assert f"{A[2]} {to} " in plain(html)
            assert f"{B[2]} 2 " in plain(html)

    visit(url_of(groups), test)  # the URL is that of the group that has no slots meanwhile


def test_a_group_that_is_killed_concerns_its_own_keys(groups: Groups) -> None:
    node = groups.groups[1].nodes[0]

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        csrf = await visitor.csrf()
        node.kill()
        gone = f"group 2 (127.0.0.1:{node.port}) does not reply: Connection refused"
        for path in ("/streams", "/topics?pattern=", "/groups", "/deadletters"):
            status, html, _ = await visitor.get(path)
            assert (status, gone in plain(html)) == (200, True), (path, plain(html))
        _, html, _ = await visitor.get("/streams")
        assert f"{A[3]} 1 1 " in plain(html)
        assert B[3] not in html
        status, html, _ = await visitor.get(f"/streams/stream?key={A[3]}")
        assert status == 200
        for path in (f"/streams/stream?key={B[3]}", f"/streams/entry?key={B[3]}&id=1"):
            status, html, _ = await visitor.get(path)
            assert (status, gone in plain(html)) == (503, True), plain(html)
        status, html, _ = await visitor.post(f"/streams/append?key={B[3]}", {"csrf": csrf, "field": "n", "value": "4"})
        assert gone in html
        status, html, _ = await visitor.get("/topics/topic?name=sales")
        assert status == 200  # its settings are in the other group
        assert "4 partitions that can't be read" in plain(html)
        _, html, _ = await visitor.get("/topics/records?name=sales")
        assert f"The records of 4 partitions are missing: {gone}" in plain(html)
        assert html.count('aria-label="Partition ') == 8
        node.start()
        await asyncio.to_thread(groups.agree)
        add_users(groups, "ann")
        assert (await visitor.get(f"/streams/stream?key={B[3]}"))[0] == 200
        assert gone not in (await visitor.get("/streams"))[1]

    visit(url_of(groups), test)


def test_a_group_that_is_suspended_concerns_its_own_keys(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusterconnection, "GROUP_MS", 1000)
    monkeypatch.setattr(clusterconnection, "RECHECK", 0.1)
    node = groups.groups[1].nodes[0]
    silent = f"group 2 (127.0.0.1:{node.port}) does not reply: no reply within 1 second"

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        async def shows(path: str, expected: int, words: str = "") -> bool:
            status, html, _ = await visitor.get(path)
            return status == expected and words in plain(html)

        await visitor.log_in()
        assert await shows(f"/streams/stream?key={B[4]}", 200)
        node.freeze()
        try:
            await until(lambda: shows("/streams", 200, silent))
            await until(lambda: shows(f"/streams/stream?key={A[4]}", 200))
            await until(lambda: shows(f"/streams/stream?key={B[4]}", 503, silent))
        finally:
            node.thaw()
        await asyncio.to_thread(groups.agree)
        await until(lambda: shows(f"/streams/stream?key={B[4]}", 200))

    visit(url_of(groups), test)


def test_users_and_rights(groups: Groups) -> None:
    first = groups.groups[0].nodes[0]
    assert first.say("ACL", "SETUSER", "one", "reset", "on", f">{PASSWORD}", *ALL) == b"OK"
    add_users(groups, "narrow", "~*", "+@connection", "+@read", "-cluster")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        assert (await log_in(visitor, "narrow")) == 303
        status, html, _ = await visitor.get(f"/streams/stream?key={B[5]}")
        assert status == 503
        assert "+cluster|slots" in html
        await log_in(visitor, "ann")  # it reads the map
        visitor.session.cookie_jar.clear()
        status, html, _ = await visitor.log_in("ann", "wrong")
        assert (status, "WRONGPASS" in html) == (403, True)
        assert (await log_in(visitor, "one")) == 303  # a user of the first group only
        assert (await visitor.get(f"/streams/stream?key={A[5]}"))[0] == 200
        status, html, _ = await visitor.get(f"/streams/stream?key={B[5]}")
        assert (status, "group" in html and "WRONGPASS" in html) == (503, True)
        assert first.say("ACL", "DELUSER", "one") == 1
        status, _, headers = await visitor.get(f"/streams/stream?key={A[5]}")
        assert (status, headers.get("Location")) == (303, "/login")
        assert first.say("ACL", "SETUSER", "one", "reset", "on", f">{PASSWORD}", *ALL) == b"OK"
        assert (await log_in(visitor, "one")) == 303
        assert first.say("ACL", "DELUSER", "one") == 1
        status, _, headers = await visitor.get("/streams")
        assert (status, headers.get("Location")) == (303, "/login")

    visit(url_of(groups), test)


@pytest.mark.parametrize("old", [False, True])
def test_a_group_joins_while_a_session_is_open(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``old``: the member that sends the names of the groups first sends an older map."""
    key = next(key for key in B if slot_of(key) >= SLOTS // 2)
    maps: list[Any] = []
    send = MemberConnection.send

    def sent(self: MemberConnection, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        if maps and calls[0].args == ("TCLUSTER", "MAP"):
            found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            found.set_result([maps.pop()])
            return found
        return send(self, calls)

    monkeypatch.setattr(MemberConnection, "send", sent)

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        await visitor.log_in()
        assert (await visitor.get("/streams"))[0] == 200
        await asyncio.to_thread(made.add)
        add_users(made, "ann")
        before = made.nodes[0].say("TCLUSTER", "MAP")
        await asyncio.to_thread(made.move, HALF, to="2")
        maps.extend([before] if old else [])
        with Client(url_of(made, 1)) as client:
            client.tappend(key, {"n": 1})
        _, html, _ = await visitor.get("/streams")
        assert f"{key} 2 1 " in plain(html)
        assert not maps

    with cluster() as servers:
        made = Groups(servers, groups=1)
        add_users(made, "ann")
        visit(url_of(made), test)


def test_programs_and_dead_letters_of_both_groups(groups: Groups) -> None:
    """A worker processes partitions in both groups. The console pauses, resumes, and resets it, and replays."""
    app = App("shop", url_of(groups), lease=2.0)
    topic = app.topic("parcels", Order, partitions=4)
    failing = True

    @app.each(topic, ordering="partition", on_error=[DeadLetter()])
    async def pack(order: Order) -> None:
        if failing:
            raise ValueError("no box")

    async def test(visitor: Visitor, console: ConsoleServer) -> None:
        nonlocal failing
        await visitor.log_in()
        token = {"X_CSRF_Token": await visitor.csrf()}

        async def shows(words: str, path: str = "/programs?kind=app") -> bool:
            return words in plain((await visitor.get(path))[1])

        async def post(action: str, **form: str) -> str:
            _, html, _ = await visitor.post(f"/programs/app/{action}?name=shop", {"processor": "pack"} | form, **token)
            return plain(html)

        async with working(app, "w1"):
            await topic.send_many([Order(number) for number in range(20)])
            await until(lambda: shows("20 open in parcels.dead", "/deadletters?queue=parcels.dead"))
            await until(lambda: shows("running"))
            assert "all partitions paused" in await post("pause")
            assert await shows("by ann in the console")
            assert "all partitions" in await post("resume")
            failing = False
            _, html, _ = await visitor.post("/deadletters/replay?queue=parcels.dead", {"action": "all"}, **token)
            assert "20 dead letters" in plain(html)
            await until(lambda: shows("0 open in parcels.dead", "/deadletters?queue=parcels.dead"))
        await topic.close()
        assert "4 partitions reset to earliest" in await post("reset", to="earliest")
        assert await shows("40 ", "/programs/app?name=shop")

    visit(url_of(groups), test)
