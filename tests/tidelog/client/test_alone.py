"""Operations with WATCH run on a connection that is not replaced between WATCH and EXEC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tidelog import Client
from tidelog.cli.connect import driving
from tidelog.client.alone import run_alone
from tidelog.client.steps import Steps
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.call import Call, plain


def increment(key: str, between: Callable[[], object]) -> Steps[list[bytes]]:
    """Read a key and set it to the next number; return the replies of EXEC. ``between``: before the transaction."""
    while True:
        yield [plain("WATCH", key)]
        (value,) = yield [plain("GET", key)]
        between()
        replies = yield [plain("MULTI"), Call(("SET", key, int(value or 0) + 1), bool), plain("EXEC")]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if replies[-1] is not None:
            return list(replies[-1])


def once(*actions: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls these at its first call only."""
    left = list(actions)

    def between() -> None:
        while left:
            left.pop(0)()

    return between


def kill(other: redis.Redis) -> None:
    other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_a_connection_that_is_lost_between_watch_and_exec(tidelog_server: Server, client: Client) -> None:
    with tidelog_server.client() as second:
        other = second.redis
        other.set("n", "1")

        def change() -> None:
            other.set("n", "100")

        for cut in (lambda: kill(other), client.redis.connection_pool.disconnect):
            with pytest.raises(redis.ConnectionError):
                run_alone(client, increment("n", once(cut, change)))
            assert other.get("n") == b"100"  # which the operation does not know
        assert run_alone(client, increment("n", once(change))) == [b"OK"]
        assert other.get("n") == b"101"


def test_the_programs_in_a_cluster_of_several_groups(groups: Groups) -> None:
    """Their requests are sent over pooled connections, of which a lost one is replaced."""
    ours, theirs = keys_of_both(2)
    access = Access.of(groups.url())
    for at, key in ((0, ours[0]), (1, theirs[0])):
        other = groups.nodes[at].redis
        other.set(key, "1")

        def change(other: Any = other, key: str = key) -> None:
            other.set(key, "100")

        def cut() -> None:
            for node in groups.nodes:
                kill(node.redis)

        with driving(access, "test", ()) as ask:
            assert ask(increment(key, once(change)), alone=True) == [b"OK"]
            assert other.get(key) == b"101"
            for elsewhere in (ours[1], theirs[1]):  # of another group than that of the first server, at least once
                with suppress(TypeError):
                    ask(increment(elsewhere, once()))
            with pytest.raises(TypeError, match="run_alone"):
                ask(increment(key, once()))
        with pytest.raises(Exception, match="no answer from"), driving(access, "test", ()) as ask:
            ask(increment(key, once(cut, change)), alone=True)
        assert other.get(key) == b"100"
