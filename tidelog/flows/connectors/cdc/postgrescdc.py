"""``postgres_cdc``: the rows of tables in PostgreSQL, and then each change, from its logical replication.

Rule 1: The position is stored by the replication slot of the server, and only there. It is the end of the last
        transaction of which all changes, and those of all transactions before it, are settled.
Rule 2: During the snapshot, the slot has another name (``snapshot_slot``). It is copied to ``slot`` when all rows are
        settled. So if ``slot`` exists, the snapshot is complete; if not, the snapshot is read again from the beginning.
Rule 3: After a reconnection, changes that were received before are skipped. They are in flight, or settled.
        Before, the source verifies that the log of the server still contains them. If not, the server is a copy, or was
        restored, and other changes could have their LSNs.
Rule 4: At most ``max_unsettled`` changes are read after the first unsettled one. A transaction of any size is passed on
        while it is received.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from tidelog.flows.api.connector import Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.cdc.options import PostgresCdcOptions
from tidelog.flows.connectors.cdc.pgoutput import Begin, Change, ChangeDecoder, Commit, lsn_text
from tidelog.flows.connectors.cdc.preparation import (
    AGAIN,
    OTHER_LOG,
    CatalogDatabase,
    PublishedTable,
    check_server,
    find_slot,
    log_end,
    published_tables,
)
from tidelog.flows.connectors.cdc.replication import ChangeConnection, Received
from tidelog.flows.connectors.cdc.snapshot import TableSnapshot
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.flows.connectors.settledprefix import SettledPrefix

log = logging.getLogger("tidelog.flows")


class PostgresCdcSource(Source):
    """Sets in meta ``operation``, ``table``, and for changes ``lsn``, ``number``, ``xid`` and ``time``."""

    type = "postgres_cdc"
    Options = PostgresCdcOptions

    @classmethod
    def option_errors(cls, options: PostgresCdcOptions, *, source: bool) -> list[str]:  # noqa: ARG003
        return options.driver_errors()

    def __init__(self, options: PostgresCdcOptions) -> None:
        super().__init__()
        self._options = options
        self._replication: ChangeConnection | None = None
        self._catalog: CatalogDatabase | None = None  # of the snapshot
        self._snapshot: TableSnapshot | None = None
        self._read: OngoingRead[bool] = OngoingRead(self.wait)
        self._decoder = ChangeDecoder()
        self._tables: frozenset[str] = frozenset()
        self._found: deque[Event] = deque()
        self._prefix: SettledPrefix[int] = SettledPrefix(0)  # LSN
        self._number = 0  # of an event
        self._end = 0  # LSN after the last transaction
        self._transaction: Begin | None = None  # the one that is being received
        self._changes = 0  # of it that were received
        self._last = (0, 0)  # final LSN of the transaction of the last change, and the number of the change in it
        self._last_xid = 0  # of this transaction
        self._expected = 0  # final LSN of the transaction that the server must send again (Rule 3); 0: none
        self._completing = False  # all rows of the snapshot were read
        self._streaming = False  # changes were received from the slot
        self._reported = 0  # LSN up to which the server may have moved the slot

    # -- connecting ------------------------------------------------------------------------------------------
    async def connect(self) -> None:
        await self.close()
        options = self._options
        name = f"tidelog {self.context.flow}.{self.context.name}"
        self._catalog = catalog = CatalogDatabase(options, name)
        self._replication = replication = ChangeConnection(options, name)
        await catalog.open()
        await check_server(catalog)
        tables = await published_tables(catalog, options)
        self._tables = frozenset(each.name for each in tables)
        self.context.described |= {"slot": options.slot, "tables": sorted(self._tables)}
        stored = await find_slot(catalog, options.slot)
        self._check_slot(stored)
        exists = stored is not None
        if await find_slot(catalog, options.snapshot_slot) is not None:  # of an incomplete snapshot
            await catalog.rows("SELECT pg_drop_replication_slot($1::name)", options.snapshot_slot)
        await replication.open()
        if exists or not options.snapshot:
            if not exists:
                await replication.create_slot(options.slot)
            await self._stream(replication)
        else:
            await self._begin_snapshot(catalog, replication, tables)

    def _check_slot(self, stored: int | None) -> None:
        """Raise ConnectionError if the slot is not the one that was used before: changes would be missing."""
        if not self._streaming:
            return
        slot = self._options.slot
        if stored is None:
            raise ConnectionError(f"the slot {slot!r} was dropped: changes are missing. To continue, {AGAIN}")
        if stored > self._reported:
            raise ConnectionError(
                f"the slot {slot!r} was dropped and created again at {lsn_text(stored)}, after the last settled change"
                f" at {lsn_text(self._reported)}: changes are missing. Drop it, and {AGAIN}"
            )

    async def _begin_snapshot(
        self, catalog: CatalogDatabase, replication: ChangeConnection, tables: Sequence[PublishedTable]
    ) -> None:
        if self._number:
            log.warning("%s: the snapshot begins again, because its connection was lost", self._options.slot)
        self._prefix.restart(0)
        self._found.clear()
        self._snapshot = TableSnapshot(catalog, tables)
        self._completing = False
        await self._snapshot.begin(await replication.create_slot(self._options.snapshot_slot))

    async def _stream(self, replication: ChangeConnection) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            try:
                await self._compare(catalog)
            finally:
                await catalog.close()
        self._decoder = ChangeDecoder()
        self._transaction = None
        await replication.start(self._options.slot)
        self._streaming = True

    async def _compare(self, catalog: CatalogDatabase) -> None:
        """Compare the log of a server with the changes that were received (Rule 3). Raises ConnectionError."""
        stored = await find_slot(catalog, self._options.slot) or 0
        end, last = await log_end(catalog), self._last[0]
        if end < self._end:
            raise ConnectionError(
                f"the log of the server ends at {lsn_text(end)}, but it was received up to {lsn_text(self._end)}:"
                f" {OTHER_LOG}"
            )
        self._expected = last if stored <= last else 0
        self._reported = max(self._reported, stored)

    async def close(self) -> None:
        await self._read.cancel()
        replication, self._replication = self._replication, None
        catalog, self._catalog = self._catalog, None
        self._snapshot = None
        for each in (replication, catalog):
            if each is not None:
                await each.close()

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def room(self) -> int:
        """Implement Rule 4. At the end of the snapshot, nothing is pulled until all of its rows are settled."""
        waiting = len(self._found)
        if self._completing and len(self._prefix) > waiting:
            return 0
        return self._options.max_unsettled - (len(self._prefix) - waiting)

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._found:
            await self._read.result(self._more)
        return [self._found.popleft() for _ in range(min(limit, len(self._found)))]

    async def _more(self) -> bool:
        replication = self._replication
        if replication is None:
            raise ConnectionError("not connected")
        if self._snapshot is not None:
            await self._more_rows(self._snapshot, replication)
            return True
        found = await replication.read()
        self.context.received(sum(len(each.data) for each in found))
        for each in found:
            self._receive(each)
        self._report(replication)
        return True

    async def _more_rows(self, snapshot: TableSnapshot, replication: ChangeConnection) -> None:
        if not self._completing:
            found = await snapshot.more()
            if found is not None:
                table, rows, size = found
                self.context.received(size)
                for row in rows:
                    self._add(Change("read", table, None, row), {}, 0)
                return
            self._completing = True
        if len(self._prefix):
            return  # ``room`` is 0
        assert self._catalog is not None  # noqa: S101 - during the snapshot
        await self._catalog.run("COMMIT")
        sql = "SELECT pg_copy_logical_replication_slot($1::name, $2::name)"
        await self._catalog.rows(sql, self._options.snapshot_slot, self._options.slot)
        await self._catalog.rows("SELECT pg_drop_replication_slot($1::name)", self._options.snapshot_slot)
        self._snapshot = None
        self._completing = False
        await self._stream(replication)

    def _receive(self, message: Received) -> None:
        """Process a message of the server. Raises ConnectionError if it is not valid."""
        if not message.data:
            if self._transaction is None and message.end > self._end:  # log without changes of these tables
                self._advance(message.end)
            return
        try:
            decoded = self._decoder.decode(message.data)
        except (ValueError, LookupError) as error:
            raise ConnectionError(f"the server sent a message that can't be decoded: {error}") from error
        if isinstance(decoded, Begin):
            self._verify(decoded)
            self._transaction = decoded
            self._changes = 0
        elif isinstance(decoded, Commit):
            self._transaction = None
            self._advance(decoded.end)
        elif decoded is not None:
            for change in decoded:
                self._change(change)

    def _verify(self, begun: Begin) -> None:
        """Raise ConnectionError if the server does not send the transaction of the last change again (Rule 3)."""
        if self._expected and begun.lsn >= self._expected:
            if (begun.lsn, begun.xid) != (self._expected, self._last_xid):
                raise ConnectionError(
                    f"the server does not send the transaction again that was received at {lsn_text(self._expected)}:"
                    f" {OTHER_LOG}"
                )
            self._expected = 0

    def _change(self, change: Change) -> None:
        begun = self._transaction
        if begun is None:
            raise ConnectionError("the server sent a change outside of a transaction")
        self._changes += 1
        place = (begun.lsn, self._changes)
        if place <= self._last:  # Rule 3
            return
        self._last, self._last_xid = place, begun.xid
        if change.table not in self._tables:
            return
        meta = {"lsn": lsn_text(begun.lsn), "number": self._changes, "xid": begun.xid, "time": begun.time}
        self._add(change, meta, self._end)

    def _add(self, change: Change, meta: dict[str, Any], after: int) -> None:
        value: dict[str, Any] = {
            "operation": change.operation, "table": change.table, "before": change.before, "after": change.after,
        }  # fmt: skip
        if change.unchanged:
            value["unchanged"] = list(change.unchanged)
        self._number += 1
        meta |= {"operation": change.operation, "table": change.table}
        self._prefix.add(self._number, after, 1 if self.context.settles else 0)
        self._found.append(Event(value, meta, self._number))

    def _advance(self, end: int) -> None:
        """The log before ``end`` has no further changes."""
        self._end = max(self._end, end)
        self._number += 1
        self._prefix.add(self._number, self._end, 0)

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, tokens: Sequence[Token]) -> None:
        if self._prefix.settle_all(token.key for token in tokens) and self._replication is not None:
            self._report(self._replication)

    def _report(self, replication: ChangeConnection) -> None:
        if self._expected:  # another server would skip changes up to this position
            return
        self._reported = max(self._reported, self._prefix.position)
        replication.flushed(self._prefix.position)
