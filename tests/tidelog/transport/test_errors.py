"""What error replies mean: which pass, which deny; and that all programs go by it."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tests.tidelog.refusing import CODES, FULL, Refusing
from tests.waiting import eventually
from tidelog.client import Client, calls
from tidelog.client.asyncclient import AsyncClient
from tidelog.testing import Server, running_server
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import LostError, connect
from tidelog.transport.errors import ReplyError, is_denied, is_retryable, is_temporary, message_of
from tidelog.transport.leader import LeaderConnection, UnreachableError

DENIED = (
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOAUTH Authentication required.",
    "NOPERM User w has no permissions to run the 'tread' command",
    "ERR invalid password",
    "ERR AUTH <password> called without any password configured for the default user.",
    "DENIED Redis is running in protected mode",
)
OTHERS = ("ERR syntax error", "WRONGTYPE Operation against a key", "NOGROUP no", "STALE epoch", "BUSYGROUP no", "")


@pytest.mark.parametrize("text", [*CODES, FULL, f"{FULL} + cluster connections reached"])
def test_what_passes(text: str) -> None:
    for error in (text, redis.ResponseError(text), ReplyError(text)):
        assert is_temporary(error)
        assert not is_denied(error)
    assert is_retryable(ReplyError(text))


@pytest.mark.parametrize("text", DENIED)
def test_what_denies(text: str) -> None:
    for error in (text, redis.ResponseError(text), ReplyError(text)):
        assert is_denied(error)
        assert not is_temporary(error)
    assert not is_retryable(ReplyError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_neither(text: str) -> None:
    assert not is_temporary(text)
    assert not is_denied(text)


@pytest.mark.parametrize("text", [*CODES, FULL])
def test_errors_as_redis_py_raises_them(tidelog_server: Server, text: str) -> None:
    async def asynchronous(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.tlen("a")

    with Refusing(tidelog_server.port, text) as refusing:
        with Client(refusing.url) as client, pytest.raises(redis.RedisError) as caught:
            client.tlen("a")
        with pytest.raises(redis.RedisError) as later:
            asyncio.run(asynchronous(refusing.url))
    for error in (caught.value, later.value):
        assert is_retryable(error)
        if "Connection" not in str(error):  # a connection that the server has closed may be noticed first
            assert message_of(error) == text


@pytest.mark.parametrize(("password", "code"), [("wrong", "WRONGPASS"), (None, "NOAUTH")])
def test_logins_as_redis_py_raises_them(password: str | None, code: str) -> None:
    with running_server(requirepass="secret") as server:
        url = server.url if password is None else server.url.replace("//", f"//:{password}@")
        url = url.replace(":secret@", f":{password}@" if password else "")
        with Client(url) as client, pytest.raises(redis.RedisError) as caught:
            client.tlen("a")
        assert is_denied(caught.value)
        assert not is_retryable(caught.value)
        assert message_of(caught.value).startswith(code)


@pytest.mark.parametrize("text", [*CODES, FULL])
def test_servers_ask_again(tidelog_server: Server, text: str) -> None:
    with Refusing(tidelog_server.port, text) as refusing:
        with pytest.raises(UnreachableError, match="no answer"):
            LeaderConnection(Access((refusing.url,), retries=1, retry_ms=1), "test").ask(calls.tlen("a"))
        assert refusing.refused >= 2
        refusing.serve()
        servers = LeaderConnection(Access((refusing.url,), retries=0), "test")
        servers.ask(calls.tlen("a"))
        servers.close()


def test_of_several_servers_one_that_refuses_is_passed_over(tidelog_server: Server) -> None:
    with Refusing(tidelog_server.port, FULL) as refusing:
        servers = LeaderConnection(Access((refusing.url, tidelog_server.url), retries=0), "test")
        assert servers.leader().url == tidelog_server.url
        servers.close()


def test_a_channel_says_what_the_server_said_before_it_closed(tidelog_server: Server) -> None:
    async def main(url: str) -> None:
        with pytest.raises((LostError, OSError)) as caught:
            await (await connect(Access((url,)), url, "test")).send([calls.tlen("a")])
        if isinstance(caught.value, LostError) and caught.value.refusal:  # else the connection was reset before
            assert FULL in str(caught.value)

    with Refusing(tidelog_server.port, FULL) as refusing:
        asyncio.run(main(refusing.url))


@pytest.mark.parametrize("text", CODES[2:5])
def test_producers_try_again(tidelog_server: Server, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A batch is sent once, although the server refuses it for a while."""
    with Refusing(tidelog_server.port) as refusing:
        topic: Topic[dict[str, str]] = Topic("orders", dict[str, str], partitions=1, url=refusing.url)
        producer = topic.sync.producer("import")
        assert producer.send_many([{"n": "1"}]).now
        refusing.refuse(text)

        async def served() -> None:
            sending = asyncio.create_task(asyncio.to_thread(producer.send_many, [{"n": "2"}]))
            await asyncio.to_thread(eventually, lambda: refusing.refused)
            refusing.serve()
            assert (await sending).now

        asyncio.run(served())
        topic.sync.close()
    with tidelog_server.client() as client:
        assert client.tlen("orders:0") == 2
    told = [record.getMessage() for record in caplog.records if record.name == "tidelog.topics.producer"]
    assert len(told) == 1
