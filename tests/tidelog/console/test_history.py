"""The samples of the plots: their stream on the server, rates, gaps, and who may record."""

from __future__ import annotations

import asyncio
from time import time

from tests.conftest import RedisServer
from tests.tidelog.console.consolekit import PASSWORD, add_user
from tidelog.console import history
from tidelog.console.history import Sample
from tidelog.console.infotext import ServerInfo
from tidelog.console.recorder import HistoryRecorder
from tidelog.console.sessions import ConsoleSession, ConsoleSessions
from tidelog.testing import Server, running_server
from tidelog.transport.access import Access
from tidelog.transport.call import checked

STEP = 5000  # ms


def test_rates_gaps_and_restarts() -> None:
    samples = [
        Sample(0, "a", {"commands": 100, "clients": 1}),
        Sample(5000, "a", {"commands": 600, "clients": 2}),
        None,
        Sample(15_000, "a", {"commands": 700, "clients": 2}),
        Sample(60_000, "a", {"commands": 800, "clients": 2}),  # after a gap
        Sample(65_000, "b", {"commands": 10, "clients": 3}),  # restarted
    ]
    assert history.points(samples, STEP) == {
        "time": [0, 5, 15, 16, 60, 65],
        "commands": [None, 100, 10, None, None, None],
        "clients": [1, 2, 2, None, 2, 3],
    }
    assert history.points([], STEP) == {"time": []}


def test_numbers_of_info() -> None:
    info = ServerInfo.parse(b"# Server\r\nrun_id:abc\r\nrole:master\r\nused_memory:7\r\nlog_store_bytes:3\r\nx:y:z\r\n")
    assert history.sample_of(info, 1).numbers == {"memory": 7, "disk": 3}
    assert (info.word("x"), info.word("y"), info.number("role")) == ("y:z", "", None)


def test_recording_is_bounded_and_shared(tidelog_server: Server) -> None:
    add_user(tidelog_server, "ann")

    async def main() -> None:
        sessions = ConsoleSessions(Access.of(tidelog_server.url))
        first = await sessions.log_in("ann", PASSWORD, "1")
        second = await sessions.log_in("ann", PASSWORD, "2")
        recorder = HistoryRecorder(sessions)
        assert await recorder.record(first)
        assert await recorder.record(second)  # the newest sample is recent
        with tidelog_server.client() as client:
            assert client.redis.xlen(history.KEY) == 1
            now = int(time() * 1000)
            client.redis.delete(history.KEY)
            for at in range(now - 60_000, now - 1, 5000):
                client.redis.xadd(history.KEY, {"run": "a", "commands": at}, id=f"{at}-1")
        samples = checked(await first.connection.read(*history.range_calls(now, 15 * 60_000)))
        columns = history.points(samples, STEP)
        assert columns["commands"][1:] == [1000.0] * 11
        assert len(history.range_calls(now, 24 * 3_600_000)) <= history.POINTS + 2
        assert history.append_call(Sample(1, "a", {"commands": 2})).args[:5] == (
            "XADD", history.KEY, "MAXLEN", "~", history.SAMPLES,
        )  # fmt: skip
        sessions.end_all()

    asyncio.run(main())


async def _problem(url: str, user: str) -> str:
    sessions = ConsoleSessions(Access.of(url))
    session: ConsoleSession = await sessions.log_in(user, PASSWORD, "1")
    await HistoryRecorder(sessions).record(session)
    sessions.end_all()
    return session.history_problem


def test_users_who_cannot_record(tidelog_server: Server) -> None:
    add_user(tidelog_server, "reader", "~*", "+@connection", "+@read", "+info")
    add_user(tidelog_server, "nobody", "+@connection")
    add_user(tidelog_server, "ann")
    found = asyncio.run(_problem(tidelog_server.url, "reader"))
    assert "refuses to append to tidelog:console:history: NOPERM" in found
    assert "refuses INFO: NOPERM" in asyncio.run(_problem(tidelog_server.url, "nobody"))
    assert asyncio.run(_problem(tidelog_server.url, "ann")) == ""
    with running_server(replicaof=f"{tidelog_server.host} {tidelog_server.port}") as replica:
        add_user(replica, "ann")
        assert "replica" in asyncio.run(_problem(replica.url, "ann"))


def test_a_redis_server(redis_server: RedisServer) -> None:
    async def main() -> None:
        sessions = ConsoleSessions(Access.of(f"redis://127.0.0.1:{redis_server.port}"))
        session = await sessions.log_in("default", "", "1")
        assert await HistoryRecorder(sessions).record(session)
        assert session.history_problem == ""
        (newest,) = await session.connection.read(history.newest_call())
        assert abs(newest - time() * 1000) < 60_000
        sessions.end_all()

    asyncio.run(main())
