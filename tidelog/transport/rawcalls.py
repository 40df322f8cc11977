"""Sends calls over redis-py's connections: without its response callbacks, and without decoding bytes."""

from __future__ import annotations

import math
from typing import Any, Final

import hiredis
import redis
from redis.exceptions import AskError, ClusterDownError, ExecAbortError, MovedError, TryAgainError

_CLASSES: Final[dict[str, type[redis.ResponseError]]] = {
    "MOVED": MovedError, "ASK": AskError, "TRYAGAIN": TryAgainError, "CLUSTERDOWN": ClusterDownError,
    "EXECABORT": ExecAbortError,
}  # fmt: skip
LOST: Final = (redis.ConnectionError, redis.TimeoutError, OSError)  # errors of the connection, not error replies


def packed(connection: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bytes:
    """Return a queued command in RESP. Raises redis.DataError for an argument whose type can't be sent."""
    ready: bytes | None = options["packed"]
    if ready is None:
        try:
            ready = hiredis.pack_command(args)
        except TypeError:
            ready = b"".join(connection.pack_command(*args))  # its error names the argument
    return ready


def read_reply(_: Any, connection: Any, command_name: str | bytes, **options: Any) -> Any:  # noqa: ARG001
    """Replace redis-py's parse_response: no callbacks, and bytes are not decoded."""
    block: int | None = options["block"]
    if block is None:
        return connection.read_response(disable_decoding=True)
    patience: float | None = connection.socket_timeout
    timeout = None if block == 0 or patience is None else patience + block / 1000
    return connection.read_response(disable_decoding=True, timeout=timeout)


async def read_reply_async(_: Any, connection: Any, command_name: str | bytes, **options: Any) -> Any:  # noqa: ARG001
    """Do the same as read_reply() for asyncio."""
    block: int | None = options["block"]
    if block is None:
        return await connection.read_response(disable_decoding=True)
    patience: float | None = connection.socket_timeout
    # In redis.asyncio, None means the socket timeout, and infinity means no timeout.
    timeout = math.inf if block == 0 or patience is None else patience + block / 1000
    return await connection.read_response(disable_decoding=True, timeout=timeout)


def reply_error(reply: Any) -> Any:
    """Return an error reply of hiredis as redis-py returns it, and another reply unchanged."""
    if not isinstance(reply, hiredis.ReplyError):
        return reply
    text = str(reply)
    code, _, rest = text.partition(" ")
    kind = _CLASSES.get(code)
    return redis.ResponseError(text) if kind is None else kind(rest, status_code=code)
