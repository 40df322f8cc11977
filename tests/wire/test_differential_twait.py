"""TWAIT beside Redis's XREAD BLOCK: what wakes a client that waits for many streams, and what does not.

The same steps on both servers. Of an XREAD the names of the streams that it returned are compared, which is what TWAIT
returns. Redis's form with a group delivers and is not like TWAIT's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tests.waiting import eventually
from tests.wire.rawclient import Raw


class Port(Protocol):
    @property
    def port(self) -> int: ...


class Ours:
    """A writer, and a client that waits."""

    def __init__(self, port: int) -> None:
        self.c, self.waiter = Raw(port), Raw(port)
        self.c("FLUSHALL")
        self.id = self.waiter("CLIENT", "ID")
        self.c("CONFIG", "RESETSTAT")

    def close(self) -> None:
        self.c.close()
        self.waiter.close()

    def append(self, key: str, ms: int) -> Any:
        return self.c("TAPPEND", key, "f", "v")

    def wait(self, ms: int, **ids: str) -> None:
        self.waiter.send("TWAIT", ms, *[word for key, last in ids.items() for word in (key, last.replace("$", ""))])

    def waits(self) -> bool:
        return b"flags=b" in self.c("CLIENT", "LIST", "ID", self.id)

    def woken(self) -> Any:
        """The keys in the reply, None for null, an error as its first word."""
        reply = self.waiter.read()
        return reply.split(" ")[0] if isinstance(reply, str) else reply


class Theirs(Ours):
    def append(self, key: str, ms: int) -> Any:
        return self.c("XADD", key, f"{ms}-0", "f", "v")

    def wait(self, ms: int, **ids: str) -> None:
        self.waiter.send("XREAD", "BLOCK", ms, "STREAMS", *ids, *ids.values())

    def woken(self) -> Any:
        reply = super().woken()
        return [key for key, _ in reply] if isinstance(reply, list) else reply


Steps = Callable[[Ours], list[Any]]
FAR = str(1 << 63)  # an ID after all others


def at_once(s: Ours) -> list[Any]:
    s.append("a", 1)
    s.append("c", 1)
    s.wait(0, a="0", b="0", c="0")
    first = s.woken()
    s.wait(0, a=FAR, b="0", c="0")
    return [first, s.woken()]


def one_of_many(s: Ours) -> list[Any]:
    s.append("a", 1)
    s.wait(0, a="$", b="$", c="0")
    eventually(s.waits)
    s.append("b", 2)
    return [s.woken()]


def time_is_over(s: Ours) -> list[Any]:
    s.wait(20, a="0", b="0")
    return [s.woken()]


def other_keys_and_old_ids(s: Ours) -> list[Any]:
    s.wait(0, a=FAR, b="0")
    eventually(s.waits)
    s.append("a", 1)
    s.append("x", 1)
    still = s.waits()
    s.append("b", 1)
    return [still, s.woken()]


def deleted_and_made_again(s: Ours) -> list[Any]:
    s.append("a", 1)
    s.wait(0, a="$", b="0")
    eventually(s.waits)
    s.c("DEL", "a")
    still = s.waits()
    s.append("b", 5)
    return [still, s.woken()]


def unblocked(s: Ours) -> list[Any]:
    found = []
    for how in ("TIMEOUT", "ERROR"):
        s.wait(0, a="0", b="0")
        eventually(s.waits)
        found += [s.c("CLIENT", "UNBLOCK", s.id, how), s.woken()]
    return found


def inside_multi(s: Ours) -> list[Any]:
    s.waiter("MULTI")
    s.wait(0, a="0", b="0")
    queued = s.waiter.read()
    return [queued, s.waiter("EXEC")]


def wrong_type(s: Ours) -> list[Any]:
    s.append("a", 1)
    s.c("SET", "b", "v")
    s.wait(0, a="0", b="0")
    return [s.woken()]


def wrong_calls(s: Ours) -> list[Any]:
    found = []
    for ms, last in ((-1, "0"), (0, "x"), (0, "1-x")):
        s.wait(ms, a=last)
        found.append(s.woken())
    return found


@pytest.fixture
def both(server: Port, redis_server: Port) -> Iterator[tuple[Ours, Theirs]]:
    made = Ours(server.port), Theirs(redis_server.port)
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "steps",
    [
        at_once, one_of_many, time_is_over, other_keys_and_old_ids, deleted_and_made_again, unblocked, inside_multi,
        wrong_type, wrong_calls,
    ],
    ids=lambda steps: steps.__name__,
)  # fmt: skip
def test_as_xread(both: tuple[Ours, Theirs], steps: Steps) -> None:
    ours, theirs = both
    assert steps(ours) == steps(theirs)
