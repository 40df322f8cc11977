"""``ObjectBatches``: collects events by the name of their object, and writes each object when it is full or old.

Rule 1: An event is settled when its object is complete.
Rule 2: At most TOTAL bytes of events are collected. Beyond that, the oldest object is written.
Rule 3: At most ``concurrency`` objects are written at the same time. ``add`` waits for them, and so do the sources.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.objects.encoding import ObjectEncoder, encoder
from tidelog.flows.connectors.objects.options import LONGEST, MARK, ObjectStoreOptions
from tidelog.flows.connectors.objects.stores import ObjectStorage

TOTAL: Final = 64 << 20  # bytes of events that are not being written

log = logging.getLogger("tidelog.flows")


@dataclass
class ObjectItem:
    """A value to write."""

    value: Any
    event: Event
    outcome: tuple[int, str] = (RETRY, "it was not written")


@dataclass
class _Batch:
    """The values of one object."""

    name: str  # with MARK
    encoder: ObjectEncoder
    began: float  # s, monotonic
    items: list[ObjectItem] = field(default_factory=list)


class ObjectBatches:
    """The objects of a sink. ``settle`` gets items with their outcomes."""

    def __init__(
        self, options: ObjectStoreOptions, store: ObjectStorage, settle: Callable[[Sequence[ObjectItem]], None],
        context: ConnectorContext,
    ) -> None:  # fmt: skip
        self._options = options
        self._store = store
        self._settle = settle
        self._context = context
        self._template = options.name_template
        self._batches: dict[str, _Batch] = {}  # by name, the oldest first
        self._size = 0  # of all
        self._writing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().create_task(self._write_old())

    async def close(self) -> None:
        """Forget all events. Objects that are being written may still become complete."""
        timer, self._timer = self._timer, None
        await cancel(timer)
        await cancel(*self._writing)
        self._batches.clear()
        self._size = 0

    async def add(self, items: Sequence[ObjectItem]) -> None:
        """Collect values. Those that can't be encoded are settled immediately."""
        bad = []
        for item in items:
            try:
                name = self._name(item.event)
                batch = self._batches.get(name)
                if batch is None:
                    batch = _Batch(name, self._encoder(name), time.monotonic())
                before = batch.encoder.size
                batch.encoder.add(item.value, item.event.meta)
            except RejectError as error:
                item.outcome = (REJECT, str(error))
                bad.append(item)
                continue
            batch.items.append(item)
            self._batches[name] = batch
            self._size += batch.encoder.size - before
            if len(batch.items) >= self._options.object_events or batch.encoder.size >= self._options.object_size:
                await self._begin(batch)
            while self._size > TOTAL:
                await self._begin(next(iter(self._batches.values())))
        self._settle(bad)
        self._changed.set()

    async def flush(self) -> None:
        """Write all events."""
        while self._batches:
            await self._begin(next(iter(self._batches.values())))
        if self._writing:
            await asyncio.wait(self._writing)

    async def write(self, items: Sequence[ObjectItem]) -> OSError | None:
        """Write values immediately, in objects of their own, and set the outcomes. Return the error, if any."""
        batches: dict[str, _Batch] = {}
        for item in items:
            try:
                name = self._name(item.event)
                batch = batches.get(name) or _Batch(name, self._encoder(name), 0)
                batch.encoder.add(item.value, item.event.meta)
            except RejectError as error:
                item.outcome = (REJECT, str(error))
                continue
            batch.items.append(item)
            batches[name] = batch
        lost = None
        for batch in batches.values():
            lost = await self._store_batch(batch) or lost
        return lost

    def _name(self, event: Event) -> str:
        name = self._template.fill(event)
        if len(name.encode()) > LONGEST:
            raise RejectError(f"{name!r:.100}: a name is longer than {LONGEST} bytes")
        return name

    def _encoder(self, name: str) -> ObjectEncoder:
        kind = self._options.kind(name)
        if kind is None:
            raise RejectError(f"{name.replace(MARK, '*')!r:.200} does not show a format: use the option format")
        return encoder(self._options, kind)

    # -- writing ---------------------------------------------------------------------------------------------
    async def _write_old(self) -> None:
        while True:
            if not self._batches:
                self._changed.clear()
                await self._changed.wait()
                continue
            oldest = next(iter(self._batches.values()))
            left = oldest.began + self._options.object_age - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            elif self._batches.get(oldest.name) is oldest:
                await self._begin(oldest)

    async def _begin(self, batch: _Batch) -> None:
        """Begin to write an object, when one of the objects that are being written is complete."""
        while len(self._writing) >= self._options.concurrency:
            await asyncio.wait(self._writing, return_when=asyncio.FIRST_COMPLETED)
        if self._batches.get(batch.name) is not batch:
            return  # another task has begun it meanwhile
        del self._batches[batch.name]
        self._size -= batch.encoder.size
        task = asyncio.get_running_loop().create_task(self._write(batch))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, batch: _Batch) -> None:
        lost = await self._store_batch(batch)
        self._settle(batch.items)
        if lost is not None:
            self._context.disconnected(lost)

    async def _store_batch(self, batch: _Batch) -> OSError | None:
        """Write an object, and set the outcomes of its items."""
        outcome = (OK, "")
        lost: OSError | None = None
        rejected: dict[int, str] = {}
        name = batch.name.replace(MARK, f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:16]}")
        try:
            content = await asyncio.to_thread(batch.encoder.end)
            rejected = content.rejected
            if content.data:
                await self._store.write(name, content.data)
                self._context.sent(len(content.data))
        except OSError as error:
            lost = error
            outcome = (RETRY, f"{name}: {error.strerror or error}")
        except Exception as error:  # no error may lose the events
            log.warning("%s: %s", name, error, exc_info=error)
            outcome = (RETRY, f"{name}: {type(error).__name__}: {error}")
        for at, item in enumerate(batch.items):
            item.outcome = (REJECT, rejected[at]) if at in rejected else outcome
        return lost
