"""Requests of operators to the tidelog server, which are repeated until it replies."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import redis

from tidelog.flows.api.operator import Operator
from tidelog.flows.serveraccess import access, channel
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError

UNREACHABLE: Final = "unreachable"  # the kind of the reason while the server does not reply
PATIENCE: Final = 10.0  # s: the timeout of a request
BACKOFF: Final = Backoff(first=0.05, most=2.0)

log = logging.getLogger("tidelog.flows")


class ServerRequests:
    """The requests of one operator. While the server does not reply, the sources above wait."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._channel: AsyncConnection | None = None

    async def together(self, *calls: Call[Any]) -> list[Any]:
        """Send calls in order. They must be idempotent, because they can be sent more than once."""
        node = self._operator.node
        delays = Delays(BACKOFF)
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    if self._channel is None:
                        where = access(str(node.context.server))  # validated with the declaration
                        self._channel = await channel(where, f"tidelog-flow:{node.context.flow}:{node.name}")
                    replies = await self._channel.together(*calls)
            except (redis.RedisError, ReplyError, OSError) as error:  # includes TimeoutError
                await self.close()  # another server may be the leader now
                text = f"{type(error).__name__}: {error}" if str(error) else f"no reply within {PATIENCE:g} s"
                if not delays.failures:
                    log.warning("%s: %s: the tidelog server: %s", node.context.flow, node.name, text)
                node.count("server_errors")
                node.trigger(UNREACHABLE, text)
                await asyncio.sleep(delays.next())
            else:
                node.restore(UNREACHABLE)
                return replies

    async def close(self) -> None:
        over, self._channel = self._channel, None
        if over is not None:
            over.close()


def place(operator: Operator, kind: str, name: str | None) -> str:
    """Return the prefix of an operator's keys on the server. It is the same for all instances of a flow."""
    node = operator.node
    return f"tidelog:flows:{kind}:{name or node.context.flow.partition('.')[0] + ':' + node.name}:"
