"""Runs an operation on its own connection, which WATCH and a MULTI in several steps require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import redis

from tidelog.client.client import Client
from tidelog.client.steps import Steps, drive
from tidelog.transport.call import Call, is_sent, read_all
from tidelog.transport.rawcalls import packed

T = TypeVar("T")


def run_alone(client: Client, steps: Steps[T]) -> T:
    """Drive an operation as ``steps.run`` does, on one connection, which is closed at the end."""
    pool: Any = None
    connection: Any = None

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        nonlocal pool, connection
        sent = list(filter(is_sent, calls))
        if connection is None:  # in a cluster, to the member of the first keys
            pool = client.pool_of(sent)
            connection = pool.get_connection()
        connection.send_packed_command([packed(connection, call.args, {"packed": call.packed}) for call in sent])
        return read_all(tuple(calls), [_reply(connection) for _ in sent], raise_on_error=False)

    try:
        return drive(send, steps)
    finally:
        if connection is not None:
            connection.disconnect()
            pool.release(connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        return error
