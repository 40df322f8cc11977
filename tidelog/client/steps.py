"""Operations as generators of calls.

A generator yields lists of calls and is sent what was read from their replies, with an error in the place of a reply
that was one. It does no I/O, so each operation exists once: ``run`` drives it over a Client, ``arun`` over an
AsyncClient, ``drive`` over whatever sends calls (``Lane.run`` in topics is a fourth).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

import redis

from tidelog.client.client import Client
from tidelog.transport.call import Call

T = TypeVar("T")
LOST: Final = (redis.ConnectionError, redis.TimeoutError, OSError)  # the connection, not the server's answer
Steps = Generator[Sequence[Call[Any]], list[Any], T]


class CallSender(Protocol):
    """What ``arun`` needs of a client: an AsyncClient has it."""

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection; an error is raised, or in the place of its result."""


def drive(send: Callable[[Sequence[Call[Any]]], list[Any]], steps: Steps[T]) -> T:
    """Drive an operation by a function that sends calls; returns what it returns.

    ``send`` returns what the calls read, with errors in their place. Errors of the connection are thrown into the
    operation: those of LOST.
    """
    try:
        calls = next(steps)
        while True:
            try:
                replies = send(calls)
            except LOST as error:
                calls = steps.throw(error)
            else:
                calls = steps.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result


def run(client: Client, steps: Steps[T]) -> T:
    """Drive an operation over a client; returns what it returns. Errors of the connection are thrown into it."""

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        return client.together(*calls, raise_on_error=False)

    return drive(send, steps)


async def arun(link: CallSender, steps: Steps[T]) -> T:
    """As ``run``, over an AsyncClient. A cancellation closes the operation; what has left, the server carries out."""
    try:
        calls = next(steps)
        while True:
            try:
                replies = await link.together(*calls, raise_on_error=False)
            except LOST as error:
                calls = steps.throw(error)
            else:
                calls = steps.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def checked(replies: list[Any]) -> list[Any]:
    """The replies. The first error among them is raised."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def single(call: Call[T]) -> Steps[T]:
    """The operation of one call."""
    (result,) = checked((yield [call]))
    done: T = result
    return done
