"""``Call``: a command that is ready to be sent, and how its reply is read.

Functions of ``tidelog.client.calls`` and ``tidelog.client.strings`` build calls. Connections and clients send them. A
call without arguments sends nothing: ``read_all`` skips it, and its result is ``read(None)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import redis

from tidelog.transport.errors import translated

T = TypeVar("T")

Name = str | bytes  # a key, a field, a group
Value = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command, ready to be sent."""

    args: tuple[Value, ...]  # the command's name first; empty: nothing is sent, and read(None) is the result
    read: Callable[[Any], T]  # from the reply, bytes undecoded, to the result
    block: int | None = None  # ms for which the server may delay the reply, 0 = no limit; None: it replies immediately
    packed: bytes | None = None  # the command in RESP, if the caller has encoded it; ``args`` then has its first words


class UnexpectedReplyError(ValueError):
    """A reply of an unexpected form: the peer is not a tidelog-server, or not one of this version."""


WRONG: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)  # of code that reads such a reply


def unexpected(call: Call[Any], error: Exception) -> Exception:
    """Return the error to raise after ``call.read`` raised one of WRONG. Instances of subclasses are returned as is."""
    if type(error) not in WRONG:
        return error
    name = call.args[0] if call.args else "no command"
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    text = f"the reply to {name} has an unexpected form: {type(error).__name__}: {error}"
    return UnexpectedReplyError(f"{text}. Is the server a tidelog-server?")


def is_sent(call: Call[Any]) -> bool:
    """Return False for a call that sends nothing."""
    return bool(call.args)


def fill_in(calls: Sequence[Call[Any]], results: Iterable[Any]) -> list[Any]:
    """Return one result for each call, given the results of the calls that were sent (``is_sent``), in order."""
    left = iter(results)
    return [next(left) if call.args else call.read(None) for call in calls]


def read_one(call: Call[T], reply: Any) -> T:
    """Return the result that a call reads from its reply. Raises UnexpectedReplyError."""
    try:
        return call.read(reply)
    except WRONG as error:
        raise unexpected(call, error) from error


def read_all(calls: Sequence[Call[Any]], replies: list[Any], raise_on_error: bool) -> list[Any]:
    """Return the result of each call. ``replies`` are those of the calls that were sent.

    The first error reply is raised; without ``raise_on_error``, each error reply takes the place of its call's result.
    """
    results: list[Any] = []
    left = iter(replies)
    for call in calls:
        reply = next(left) if is_sent(call) else None
        if not isinstance(reply, redis.ResponseError):
            results.append(read_one(call, reply))
        elif raise_on_error:
            raise translated(reply) from None
        else:
            results.append(translated(reply))
    return results


def read_outcome(call: Call[Any], reply: Any) -> Any:
    """Return the result of a call that was sent, or the error in place of its reply, or that of reading it."""
    if isinstance(reply, redis.ResponseError):
        return translated(reply)
    try:
        return reply if isinstance(reply, Exception) else read_one(call, reply)
    except Exception as error:  # noqa: BLE001 - an error of this call only
        return error


def checked(results: list[Any]) -> list[Any]:
    """Return the results. Raises the first error among them."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def plain(*args: Any) -> Call[Any]:
    """Return a call whose result is its reply."""
    return Call(args, _unchanged)


def queued(call: Call[Any]) -> Call[Any]:
    """Return the call as it is sent inside MULTI, where its reply is ``QUEUED``."""
    return Call(call.args, _unchanged, packed=call.packed)


def _unchanged(reply: Any) -> Any:
    return reply
