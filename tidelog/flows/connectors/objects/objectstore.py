"""``object_store``: reads and writes objects in S3, Google Cloud Storage, Azure, and directories, through fsspec.

A source reads each object of a directory once, also those that are added later. A sink collects events, and writes them
to objects that a template names. Both deliver at least once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.flows.api.connector import DEFERRED, Deferred, Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.batchmembers import members
from tidelog.flows.connectors.objects.batches import ObjectBatches, ObjectItem
from tidelog.flows.connectors.objects.options import (
    PARQUET,
    UNIQUE,
    ObjectStoreOptions,
    path_of,
    position_warnings,
)
from tidelog.flows.connectors.objects.reading import ObjectQueue
from tidelog.flows.connectors.objects.stores import ObjectStorage
from tidelog.flows.connectors.ongoingread import OngoingRead


class ObjectStoreConnector(Source, Sink):
    """Sets in meta ``object``, the URL, and ``number``, the number of the event in the object, from 1."""

    type = "object_store"
    Options = ObjectStoreOptions

    @classmethod
    def option_errors(cls, options: ObjectStoreOptions, *, source: bool) -> list[str]:
        found = options.package_errors()
        if source and options.every is not None and options.position is None:
            found.append("position is missing: name a file that stores which objects were read")
        if source:
            return found
        name = path_of(options.url).rpartition("/")[2]
        if UNIQUE not in options.url and options.object_events > 1:
            found.append(
                f"url has no {UNIQUE}, so objects would replace each other: add it, or use object_events: 1 with the"
                " placeholder of a key"
            )
        if not name:
            found.append(f"url: the name of objects is missing, such as {options.url}{{day}}/{UNIQUE}.jsonl.gz")
        elif (kind := options.kind(name)) is None and "{" not in name.rpartition(".")[2]:
            found.append("the format is unknown: url must end with .jsonl, .csv, or .parquet (and .gz or .zst), or use"
                         " the option format")  # fmt: skip
        elif kind is not None and kind.format == PARQUET:
            found += parquet_errors()
        return found

    @classmethod
    def option_warnings(cls, options: ObjectStoreOptions, *, source: bool) -> list[str]:
        return position_warnings(options.position) if source else []

    def __init__(self, options: ObjectStoreOptions) -> None:
        super().__init__()
        self._options = options
        self._store: ObjectStorage | None = None
        self._queue: ObjectQueue | None = None
        self._read: OngoingRead[bool] = OngoingRead(self.wait)
        self._batches: ObjectBatches | None = None
        self._next = 0.0  # loop time of the next search
        self._searched = False
        self._ended = False

    async def connect(self) -> None:
        if self._store is None:
            self._store = self._options.store()
        await self._store.open()
        if self.context.source is not None:
            if self._queue is None:
                self._queue = ObjectQueue(self._options, self.context.received)
            await self._queue.open()
        if self.context.sink is not None:
            self._batches = ObjectBatches(self._options, self._store, self._settle, self.context)
            self._batches.start()

    async def close(self) -> None:
        await self._read.cancel()
        batches, self._batches = self._batches, None
        if batches is not None:
            await batches.close()
        if self._queue is not None:
            await self._queue.close()
        if self._store is not None:
            await self._store.close()

    # -- source ----------------------------------------------------------------------------------------------
    @property
    def room(self) -> int | None:
        return None if self._queue is None else self._options.max_unsettled - self._queue.unsettled

    async def pull(self, limit: int) -> list[Event] | None:
        if self._queue is None:
            raise ConnectionError("not connected")
        queue = self._queue
        if not queue.found:
            found = await self._read.result(self._more)
            if found is False:
                if self._options.every is None:
                    return None
                loop = asyncio.get_running_loop()
                await self.wait(asyncio.sleep(max(0.0, self._next - loop.time())))
        return queue.take(limit)

    async def _more(self) -> bool:
        """Read events, or search for objects. Return False if there is nothing to do until the next search."""
        if self._queue is None or self._store is None:
            raise ConnectionError("not connected")
        if await self._queue.fill(self._store):
            return True
        now = asyncio.get_running_loop().time()
        if self._searched and (self._options.every is None or now < self._next):
            return False
        await self._queue.search(self._store)
        self._searched = True
        self._next = now + (self._options.every or 0)
        return await self._queue.fill(self._store)

    async def settled(self, tokens: Sequence[Token]) -> None:
        if self._queue is not None:
            await self._queue.settled(token.key for token in tokens)

    # -- sink ------------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome]:
        if self._batches is None:
            raise ConnectionError("not connected")
        parts = [members(each) for each in events]
        if all(each is None for each in parts):
            await self._batches.add([ObjectItem(each.value, each) for each in events])
            return DEFERRED
        # batches of the operator are objects of their own, because they have an outcome for each member
        made = [
            [ObjectItem(event.value, event)] if part is None else [ObjectItem(one.value, one.event) for one in part]
            for event, part in zip(events, parts, strict=True)
        ]
        error = await self._batches.write([one for each in made for one in each])
        if error is not None:
            self.context.disconnected(error)
        return [
            items[0].outcome if part is None else [one.outcome for one in items]
            for items, part in zip(made, parts, strict=True)
        ]

    def _settle(self, items: Sequence[ObjectItem]) -> None:
        for each in items:
            self.context.answer(each.event, *each.outcome)

    async def flush(self) -> None:
        if self._batches is not None:
            await self._batches.flush()


def parquet_errors() -> list[str]:
    """Return the package that is missing for Parquet."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return ["Parquet needs the package 'pyarrow': pip install 'tidelog[flows-objects]'"]
    return []
