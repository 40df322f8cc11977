"""The control stream, after its connection was lost."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.waiting import until
from tidelog import Client, StreamId
from tidelog.coordination.controlstream import ControlStream, notify
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.workers.coordination.connections import WorkerConnector

NAME = "follower"


def joined(name: str) -> Call[Any]:
    return notify("control", {"kind": "joined", "engine": name, "job": "bill"})


def waits(client: Client) -> str:
    """The connection that waits for messages; empty while none does."""
    found = [each["id"] for each in client.redis.client_list() if each["name"] == NAME and "b" in each["flags"]]
    return found[0] if found else ""


def follow(server: Server, client: Client, last: StreamId) -> list[bool]:
    """Lose the connection of one that has read up to ``last``; what it is told until it has heard one message more."""

    async def main() -> list[bool]:
        heard: list[bool] = []
        line = WorkerConnector(Access((server.url,)), NAME).connection()
        control = ControlStream("control", "job", line)
        control.subscribe("bill", heard.append)
        client.run(joined("w1"))
        await control.begin()
        control.last = last
        control.start()
        await until(lambda: waits(client) or heard)
        heard.clear()
        await until(lambda: waits(client))
        client.redis.client_kill_filter(_id=waits(client))
        await until(lambda: heard)
        assert heard == [True]  # without a message, and long before the read that waits has ended
        await until(lambda: waits(client))
        client.run(joined("w2"))
        await until(lambda: len(heard) > 1)
        await control.stop()
        line.close()
        return heard

    return asyncio.run(main())


def test_after_a_loss_it_says_so_at_once(tidelog_server: Server, client: Client) -> None:
    assert follow(tidelog_server, client, StreamId(0)) == [True, False]


def test_messages_below_the_last_one_are_heard_after_a_loss(tidelog_server: Server, client: Client) -> None:
    """As after a failover to a server that lacks the last messages, or whose clock is behind."""
    assert follow(tidelog_server, client, StreamId(2**50)) == [True, False]


def test_a_listener_that_fails_does_not_end_the_following(tidelog_server: Server, client: Client) -> None:
    async def main() -> list[bool]:
        heard: list[bool] = []
        line = WorkerConnector(Access((tidelog_server.url,)), NAME).connection()
        control = ControlStream("control", "job", line)
        control.subscribe("bill", fails)
        control.subscribe("bill", heard.append)
        await control.begin()
        control.start()
        for count in (1, 2):
            client.run(joined("w"))
            await until(lambda count=count: len(heard) == count)  # type: ignore[misc]
        await control.stop()
        line.close()
        return heard

    def fails(_: bool) -> None:
        raise ValueError("a bug")

    assert asyncio.run(main()) == [False, False]


def test_a_message_reaches_the_listeners_of_its_subject(tidelog_server: Server, client: Client) -> None:
    async def main() -> dict[str, list[bool]]:
        heard: dict[str, list[bool]] = {"bill": [], "ship": [], "": []}
        line = WorkerConnector(Access((tidelog_server.url,)), NAME).connection()
        control = ControlStream("control", "job", line)
        client.run(notify("control", {"kind": "left", "job": "ship"}))  # before it begins
        await control.begin()
        silent = control.subscribe("bill", lambda _: heard["bill"].append(True))
        for subject, callbacks in heard.items():
            control.subscribe(subject, callbacks.append)
        silent()
        control.start()
        client.run(notify("control", {"kind": "left", "job": "bill"}))
        client.run(notify("control", {"kind": "leader"}))  # concerns everything
        await until(lambda: heard[""])
        await control.stop()
        line.close()
        return heard

    assert asyncio.run(main()) == {"bill": [False], "ship": [], "": [False]}


def test_a_control_stream_is_short(client: Client) -> None:
    client.tmappend("control", ["kind"], [["old"]] * 5000)
    client.run(joined("w1"))
    assert client.tlen("control") < 5000
