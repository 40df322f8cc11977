"""Operations as generators of calls.

A generator yields lists of calls and is sent what was read from their replies, with an error in the place of a reply
that was one. It does no I/O, so each operation exists once: ``run`` drives it over a Client, ``Lane.run`` over an
AsyncClient.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import redis

from tidelog.client.calls import Call
from tidelog.client.client import Client

T = TypeVar("T")
Steps = Generator[Sequence[Call[Any]], list[Any], T]


def run(client: Client, steps: Steps[T]) -> T:
    """Drive an operation over a client; returns what it returns. Errors of the connection are thrown into it."""
    try:
        calls = next(steps)
        while True:
            try:
                replies = client.together(*calls, raise_on_error=False)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                calls = steps.throw(error)
            else:
                calls = steps.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result


def good(replies: list[Any]) -> list[Any]:
    """The replies. The first error among them is raised."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def one(call: Call[T]) -> Steps[T]:
    """The operation of one call."""
    (result,) = good((yield [call]))
    done: T = result
    return done
