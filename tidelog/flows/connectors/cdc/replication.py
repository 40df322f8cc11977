"""``ChangeConnection``: receives changes, and reports which of them are settled.

psycopg has no interface for replication, so this uses its binding of libpq. The messages in both directions:

    server: w  start LSN (8), end LSN (8), time (8), a message of pgoutput
            k  end LSN (8), time (8), reply wanted (1)
    client: r  received LSN (8), flushed LSN (8), applied LSN (8), time (8), reply wanted (1)

Rule 1: The server removes its log up to the flushed LSN, which is never after the first unsettled change.
Rule 2: The position is reported every ``status_interval``, also while nothing is read, so that the server does not end
        the connection of a flow that is paused. The server answers; without an answer, the connection is lost.
Rule 3: Only one batch of messages is in memory. While nothing is read, the server waits.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq

from tidelog.flows.connectors.cdc.options import PostgresCdcOptions
from tidelog.flows.connectors.cdc.preparation import CatalogDatabase, quoted
from tidelog.flows.connectors.sql.database import one_line
from tidelog.transport.cancellation import cancel_and_wait

BATCH: Final = 200  # messages
SIZE: Final = 256 << 10  # bytes of a batch after which it ends
_EPOCH: Final = 946_684_800  # s, from 1970 to 2000

log = logging.getLogger("tidelog.flows")


class Received(NamedTuple):
    """A message of the server."""

    end: int  # LSN up to which the server has sent its log
    data: bytes  # of pgoutput. Empty: a keepalive


class ChangeConnection(CatalogDatabase):
    """A connection in replication mode."""

    def __init__(self, options: PostgresCdcOptions, name: str) -> None:
        super().__init__(options, name, replication="database")
        self._status_interval = float(options.status_interval)
        self._publication = options.publication
        self._received = 0  # LSN
        self._flushed = 0  # LSN
        self._status: asyncio.Task[None] | None = None

    async def create_slot(self, slot: str) -> str:
        """Create a slot, and return the name of its snapshot, which exists until the next call. Raises ConnectionError.
        """
        sql = f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL pgoutput EXPORT_SNAPSHOT"
        task = asyncio.ensure_future(self._opened().execute(sql))
        try:
            done, _ = await asyncio.wait((task,), timeout=self.timeout)
            if not done:
                log.warning("%s: PostgreSQL creates the slot when all transactions that are open now have ended", slot)
            cursor = await asyncio.shield(task)
            row: Any = await cursor.fetchone()
        except asyncio.CancelledError:
            self.abort()
            await asyncio.gather(task, return_exceptions=True)
            raise
        except psycopg.Error as error:
            raise ConnectionError(one_line(error)) from error
        return str(row[2])

    async def start(self, slot: str) -> None:
        """Begin to receive changes, from the flushed position of the slot. Raises ConnectionError."""
        publication = self._publication.replace("'", "''")
        sql = (
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{quoted(publication)}')"
        )
        connection = self._opened().pgconn
        try:
            connection.send_query(sql.encode())
            connection.flush()
            while connection.is_busy():
                await self._readable(connection)
            result = connection.get_result()
        except psycopg.Error as error:
            raise ConnectionError(one_line(error)) from error
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise ConnectionError(one_line(result.get_error_message() if result else "no result"))
        self._status = asyncio.ensure_future(self._report())

    async def close(self) -> None:
        task, self._status = self._status, None
        await cancel_and_wait(task)
        await super().close()

    # -- reading ---------------------------------------------------------------------------------------------
    async def read(self) -> list[Received]:  # type: ignore[override] # not the result of a query
        """Wait for messages. Raises ConnectionError."""
        connection = self._opened().pgconn
        found: list[Received] = []
        size = 0
        consumed = False  # all bytes that have arrived
        try:
            while len(found) < BATCH and size < SIZE:
                count, data = connection.get_copy_data(1)
                if count > 0:
                    consumed = False
                    message = self._message(bytes(data))
                    if message is not None:
                        found.append(message)
                        size += len(message.data)
                elif count == 0:
                    if not consumed:  # with TLS, each call reads one record, which the server writes for each message
                        connection.consume_input()
                        consumed = True
                        continue
                    if found:
                        break
                    await self._readable(connection)
                else:
                    result = connection.get_result()
                    text = result.get_error_message() if result is not None else ""
                    raise ConnectionError(one_line(text or "the server has ended the replication"))
        except psycopg.Error as error:
            raise ConnectionError(one_line(error)) from error
        return found

    def _message(self, data: bytes) -> Received | None:
        if data[:1] == b"w":
            _, end, _ = struct.unpack_from("!qqq", data, 1)
            self._received = max(self._received, end)
            return Received(end, data[25:])
        if data[:1] == b"k":
            end, _, wanted = struct.unpack_from("!qqB", data, 1)
            self._received = max(self._received, end)
            if wanted:
                self.report()
            return Received(end, b"")
        return None

    async def _readable(self, connection: Any) -> None:
        """Wait for bytes, and read them. Implements Rule 2."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        descriptor = connection.socket
        loop.add_reader(descriptor, _wake, waiter)
        try:
            async with asyncio.timeout(self._status_interval + self.timeout):
                await waiter
        except TimeoutError:
            raise ConnectionError(f"no reply within {self._status_interval + self.timeout:g} s") from None
        finally:
            loop.remove_reader(descriptor)
        connection.consume_input()

    # -- reporting -------------------------------------------------------------------------------------------
    def flushed(self, lsn: int) -> None:
        """Report that all changes before an LSN are settled."""
        if lsn > self._flushed:
            self._flushed = lsn
            self.report()

    async def _report(self) -> None:
        while True:
            self.report(reply=True)
            await asyncio.sleep(self._status_interval)

    def report(self, *, reply: bool = False) -> None:
        connection = self._connection
        if connection is None or connection.closed or self._status is None:
            return
        now = int((time.time() - _EPOCH) * 1e6)
        received = max(self._received, self._flushed)
        data = struct.pack("!cqqqqB", b"r", received, self._flushed, self._flushed, now, reply)
        try:
            connection.pgconn.put_copy_data(data)
            connection.pgconn.flush()
        except psycopg.Error:
            pass  # the next read raises an error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
