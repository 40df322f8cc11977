"""``enrich``: adds data from a file to each event. The file is read again when it changes.

Rule 1: Until the file has been read for the first time, no event is accepted, and the sources above have the reason
        ``unreadable``. So no event passes without its data.
Rule 2: If a new version can't be read, the table of the old one remains in use. This is logged once for each version,
        and counted.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Annotated, Final

import msgspec

from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.edges import check_port
from tidelog.flows.expressions.nodes import Cell
from tidelog.flows.operators.fieldpaths import field_path, with_field
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.lookuptable import (
    FileFormat,
    FileState,
    Table,
    discard,
    file_format,
    key_of,
    load,
    row_of,
)
from tidelog.options.structs import Struct
from tidelog.options.units import Interval, PositiveSize

UNREADABLE: Final = "unreadable"  # the kind of the reason until the file has been read

log = logging.getLogger("tidelog.flows")


class EnrichOptions(Struct):
    """The options of ``enrich``."""

    file: str  # The path of the file.
    key: str  # A JMESPath expression for the key of an event: a string or a number.
    set: dict[str, str]
    # Fields of the event, as paths, and their expressions. The input of an expression is the row, and `$event` is the
    # value of the event.
    by: str | None = None
    # The field of a row that is its key. `null`: the file is a JSON object, whose fields are the keys.
    format: FileFormat | None = None
    # `csv`, `json`, or `jsonl`. `null`: from the suffix `.csv`, `.json`, `.jsonl`, or `.ndjson`.
    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","  # Between the fields of CSV.
    missing: str | None = None
    # The port of events without a row, which must be connected. `null`: they are passed on unchanged.
    every: Interval = Interval(5.0)  # The interval at which the file is checked for changes.
    max_bytes: PositiveSize = PositiveSize(
        16 << 20
    )  # Maximum size of the file. A table takes two to seven times as much memory.


class EnrichOperator(Operator):
    """Implements ``enrich``."""

    type = "enrich"
    Options = EnrichOptions

    def __init__(self, options: EnrichOptions) -> None:
        if not options.set:
            raise ValueError('set is empty: use {set: {customer: "@"}}')
        kind = options.format or file_format(options.file)
        if kind == "csv" and options.by is None:
            raise ValueError("by is missing: set it to the name of the column that has the keys")
        if options.missing is not None:
            check_port(options.missing, "missing", "out")
        self._options = options
        self._event: Cell = [None]
        scope = {"$event": self._event}
        self._key = expression(options.key, "key")
        self._set = [
            (field_path(name, "set"), expression(text, f"set.{name}", scope)) for name, text in options.set.items()
        ]
        self._read = partial(load, options.file, kind, options.by, options.delimiter, int(options.max_bytes))
        self._table: Table | None = None
        self._state: FileState | None = None  # of the file that is in use
        self._seen: FileState | None = None  # at the last check
        self._failed: FileState | str | None = None  # the last version that could not be read, or the error

    def ports(self) -> tuple[str, ...]:
        return () if self._options.missing is None else (self._options.missing,)

    def required(self) -> tuple[str, ...]:
        return () if self._options.missing is None else ("out", self._options.missing)

    def start(self) -> None:
        self.spawn(self._watch())

    def busy(self) -> bool:
        return self._table is None

    # -- the file --------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                state = await loop.run_in_executor(None, FileState.of, self._options.file)
                if self._is_new(state):
                    await self._reload()
                self._seen = state
            except OSError as error:
                self._refuse(None, f"{error.strerror or error}")
            await asyncio.sleep(self._options.every)

    def _is_new(self, state: FileState) -> bool:
        """Return whether to read the file now (``lookuptable``, rule 2)."""
        if state in (self._state, self._failed):
            return False
        replaced = self._seen is None or state.inode != self._seen.inode
        return self._table is None or replaced or state == self._seen

    async def _reload(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._state, table = await loop.run_in_executor(None, self._read)
        except ValueError as error:
            state = await loop.run_in_executor(None, FileState.of, self._options.file)
            self._refuse(state, str(error))
            return
        old, self._table = self._table, table
        self._failed = None
        self.node.count("loaded")
        log.info("%s: %s: %s: %d rows", self.node.context.flow, self.node.name, self._options.file, len(table))
        if old is None:
            self.node.restore(UNREADABLE)
            self.node.wake()
        else:
            await loop.run_in_executor(None, discard, old)

    def _refuse(self, state: FileState | None, text: str) -> None:
        failed = text if state is None else state
        if failed == self._failed:
            return
        self._failed = failed
        self.node.count("load_errors")
        use = "waiting for a valid one" if self._table is None else "the rows of the last valid version remain in use"
        log.warning("%s: %s: %s: %s; %s", self.node.context.flow, self.node.name, self._options.file, text, use)
        if self._table is None:
            self.node.trigger(UNREADABLE, f"{self._options.file}: {text}")

    # -- events ----------------------------------------------------------------------------------------------
    def process(self, events: list[Event]) -> None:
        table = self._table
        assert table is not None  # noqa: S101 - no batch is taken before
        good: list[Event] = []
        missing: list[Event] = []
        for event in events:
            try:
                key = key_of(self._key(event.value))
                if key is None or key not in table:
                    missing.append(event)
                    if self._options.missing is None:
                        good.append(event)
                    continue
                row = row_of(table, key)
                value = self._event[0] = event.value
                for names, run in self._set:
                    value = with_field(value, names, copied(run(row)))  # several fields can have the same object
                event.value = value
                good.append(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        self._event[0] = None
        if missing:
            self.node.count("missing", len(missing))
            if self._options.missing is not None:
                self.emit(missing, self._options.missing)
        self.emit(good)
