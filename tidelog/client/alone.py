"""Runs an operation on its own connection, which WATCH and a MULTI in several steps require.

The connection is never replaced between WATCH and EXEC: if it is lost, the operation ends with an error.

In a cluster of several groups, WATCH, MULTI to EXEC, and UNWATCH are sent over a connection to the leader of the key
that is watched, and all other calls to the leaders of their keys. A redirection of a transaction means that it has
moved: the result of EXEC is then null, as after a change of the key, and the operation begins again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import redis

from tidelog.client.client import Client
from tidelog.client.steps import Steps, drive
from tidelog.transport.call import Call, fill_in, is_sent, read_all
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.rawcalls import packed
from tidelog.transport.routing import ATTEMPTS, BACKOFF, is_redirection

T = TypeVar("T")
_PINNED: Final = ("WATCH", "MULTI", "UNWATCH")  # the first command of a request that needs the connection


def run_alone(client: Client, steps: Steps[T]) -> T:
    """Drive an operation as ``steps.run`` does, on one connection, which is closed at the end."""
    alone = _Connection(client)
    try:
        return drive(_InCluster(client, alone).send if client.several_groups() else alone.send, steps)
    finally:
        alone.close()


class _Connection:
    """A connection of its own. In a cluster, it is to the member of the keys that are sent first."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pool: Any = None
        self._connection: Any = None
        self._socket: Any = None  # of the connection: redis-py would replace a closed one without a word

    def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        sent = list(filter(is_sent, calls))
        if self._connection is None:
            self._pool = self._client.pool_of(sent)
            self._connection = self._pool.get_connection()
            self._socket = self._connection._sock
        connection = self._connection
        if connection._sock is not self._socket:  # a WATCH on it would be lost, and EXEC would be executed
            raise redis.ConnectionError("the connection was lost, so the operation has ended: run it again")
        words = [packed(connection, call.args, {"packed": call.packed}) for call in sent]
        connection.send_packed_command(words, check_health=False)  # after a failed check, it would connect again
        return read_all(tuple(calls), [_reply(connection) for _ in sent], raise_on_error=False)

    def is_to(self, pool: Any) -> bool:
        """Return whether it is to the server of a pool, or not open yet."""
        return self._connection is None or self._pool is pool

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._pool.release(self._connection)
            self._connection = self._socket = None


class _InCluster:
    """Sends the requests of an operation in a cluster of several groups."""

    def __init__(self, client: Client, alone: _Connection) -> None:
        self._client = client
        self._alone = alone
        self._moved = False  # whether the watched key has moved since WATCH

    def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        sent = [call for call in calls if is_sent(call)]
        name = sent[0].args[0] if sent else ""
        if name == "WATCH":
            self._alone.close()  # ends an earlier WATCH
            self._moved = False
            return self._watched(calls)
        if name not in _PINNED:
            return self._client.together(*calls, raise_on_error=False)
        if name == "MULTI" and not self._moved:
            try:
                self._moved = not self._alone.is_to(self._client.pool_of(sent))
            except CrossGroupError as error:
                return fill_in(calls, [error] * len(sent))
        if not self._moved:
            replies = self._alone.send(calls)
            if not any(map(is_redirection, replies)):
                return replies
            self._moved = True
            self._client.redirected()
            time.sleep(BACKOFF.first)
        return fill_in(calls, [None] * len(sent))

    def _watched(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send WATCH to the leader of the key, which may change meanwhile."""
        for attempt in range(ATTEMPTS + 1):
            replies = self._alone.send(calls)
            if not any(map(is_redirection, replies)) or attempt == ATTEMPTS:
                break
            self._alone.close()
            self._client.redirected()
            time.sleep(BACKOFF.delay(attempt + 1))
        return replies


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error
