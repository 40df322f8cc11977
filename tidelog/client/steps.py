"""Operations as generators of calls.

A generator yields lists of calls and receives their results; an error reply takes the place of a result. It does no
I/O, so each operation exists once: ``run`` drives it over a Client, ``arun`` over an AsyncClient, ``drive`` over any
function that sends calls, and ``CallPipeline.run`` over the connection that the tasks of an event loop share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from tidelog.client.client import Client
from tidelog.transport.call import Call, plain, queued
from tidelog.transport.call import checked as checked
from tidelog.transport.errors import ReplyError
from tidelog.transport.rawcalls import LOST as LOST

T = TypeVar("T")
Steps = Generator[Sequence[Call[Any]], list[Any], T]


class CallSender(Protocol):
    """The part of AsyncClient that ``arun`` uses. AsyncConnection has it, too."""

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls in order on one connection. An error is raised, or takes the place of its result."""


def drive(send: Callable[[Sequence[Call[Any]]], list[Any]], steps: Steps[T]) -> T:
    """Drive an operation with a function that sends calls, and return its result.

    ``send`` returns the results of the calls; an error takes the place of a result. Errors of the connection (LOST) are
    thrown into the operation.
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


def drive_over(ask: Callable[..., list[Any]], steps: Steps[T]) -> T:
    """Drive an operation over ``ask`` of a LeaderConnection or a Publisher."""
    return drive(lambda calls: ask(*calls), steps)


def run(client: Client, steps: Steps[T]) -> T:
    """Drive an operation over a client and return its result. Errors of the connection are thrown into it."""

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        return client.together(*calls, raise_on_error=False)

    return drive(send, steps)


async def arun(link: CallSender, steps: Steps[T]) -> T:
    """Drive an operation over an AsyncClient. A cancellation closes it; the server executes calls already sent."""
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


def existing(key: str, reply: Any) -> Any:
    """Return the result of a call, None if the key does not exist. Raises ReplyError, with the key in its text."""
    if not isinstance(reply, ReplyError):
        return reply
    if "no such key" in str(reply):
        return None
    raise ReplyError(f"{reply} (stream {key!r})")


def transaction(calls: Sequence[Call[Any]]) -> Steps[list[Any] | None]:
    """Execute calls in one step (MULTI). Returns their replies as the server sent them, with errors in their places.

    Returns None if a watched key has changed. Raises the server's error if it has executed none of them.
    """
    replies = checked((yield [plain("MULTI"), *map(queued, calls), plain("EXEC")]))
    done: list[Any] | None = replies[-1]
    return done


def single(call: Call[T]) -> Steps[T]:
    """Return the operation that consists of one call."""
    (result,) = checked((yield [call]))
    done: T = result
    return done
