"""The sink ``stream``: a batch of events as TMAPPENDs, in one round trip.

Events of one stream with the same fields, one after the other, are one TMAPPEND. Several batches may be on their way:
they leave on one connection, in order, so their entries are in order as well unless one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis
import jmespath
import redis

from tidelog.client import calls
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.flows.serveraccess import channel
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import Channel
from tidelog.transport.call import Call, Value

#: Codes of errors that somebody may mend: the events are tried again.
MENDED: Final = frozenset({"WRONGTYPE", "NOPERM", "NOAUTH"})
PLACE: Final = "{}"


@dataclass(frozen=True)
class Retention:
    """What stays in a stream after an append; both None: everything."""

    count: int | None = None
    age: float | None = None  # s

    def call(self, key: str) -> Call[Any] | None:
        if self.count is not None:
            return calls.ttrim(key, count=self.count)
        return None if self.age is None else calls.ttrim(key, ms=round(self.age * 1000))


class StreamSelector:
    """Into which stream an event goes. ValueError: the expression is none."""

    def __init__(self, key: str, topic: str | None, meta: str | None) -> None:
        self._key = key
        self._meta = meta
        self._expression: Any = None
        if topic is not None:
            try:
                self._expression = jmespath.compile(topic)
            except jmespath.exceptions.JMESPathError as error:
                raise ValueError(f"topic: {error}") from None
        self.fixed = key if topic is None and meta is None else None

    def of(self, event: Event) -> str:
        """RejectError: there is no text where the name should be."""
        if self.fixed is not None:
            return self.fixed
        try:
            found = event.meta.get(self._meta) if self._meta is not None else self._expression.search(event.value)
        except jmespath.exceptions.JMESPathError as error:
            raise RejectError(f"topic: {error}") from None
        if isinstance(found, str) and found:
            return self._key.replace(PLACE, found) if PLACE in self._key else found
        if self._key and PLACE not in self._key:
            return self._key
        raise RejectError(f"the event names no stream: {found!r} is no text")


@dataclass
class _AppendGroup:
    """Events that become one TMAPPEND."""

    key: str
    fields: tuple[Any, ...]
    rows: list[Sequence[Value]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # in the batch

    def call(self) -> Call[Any]:
        """TypeError, ValueError: a value can't be sent."""
        call = calls.tmappend(self.key, self.fields, self.rows)
        return Call(call.args, call.read, packed=hiredis.pack_command(call.args))  # type: ignore[arg-type] # any length


class StreamWriter:
    """``write`` may be called again before it has returned."""

    def __init__(self, where: Access, name: str, keys: StreamSelector, codec: EntryCodec, evict: Retention) -> None:
        self._where = where
        self._name = name
        self._keys = keys
        self._codec = codec
        self._evict = evict
        self._channel: Channel | None = None

    async def open(self) -> None:
        self.close()
        self._channel = await channel(self._where, self._name)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        """As ``Sink.write``."""
        if self._channel is None:
            raise ConnectionError("not connected")
        outcomes: list[Outcome] | None = None
        runs, refused = self._runs(events)
        sent: list[_AppendGroup] = []
        made: list[Call[Any]] = []
        for run in runs:
            try:
                made.append(run.call())
                sent.append(run)
            except (TypeError, ValueError, OverflowError):
                for row, at in zip(run.rows, run.places, strict=True):
                    single = _AppendGroup(run.key, run.fields, [row], [at])
                    try:
                        made.append(single.call())
                        sent.append(single)
                    except (TypeError, ValueError, OverflowError) as error:
                        refused[at] = f"it can't be sent: {error}"
        if refused:
            outcomes = [OK] * len(events)
            for at, why in refused.items():
                outcomes[at] = (REJECT, why)
        trims = [call for key in {run.key for run in sent} if (call := self._evict.call(key)) is not None]
        replies = await self._channel.send([*made, *trims])
        for run, reply in zip(sent, replies, strict=False):
            if isinstance(reply, redis.ResponseError):
                outcomes = [OK] * len(events) if outcomes is None else outcomes
                status = RETRY if str(reply).partition(" ")[0] in MENDED else REJECT
                for at in run.places:
                    outcomes[at] = (status, f"{run.key}: {reply}")
        return outcomes

    def _runs(self, events: list[Event]) -> tuple[list[_AppendGroup], dict[int, str]]:
        """(runs, in an order that keeps each stream's; why an event can't be written, by its place)"""
        refused: dict[int, str] = {}
        runs: list[_AppendGroup] = []
        last: dict[str, _AppendGroup] = {}  # by stream
        encode, fixed = self._codec.encode, self._keys.fixed
        for at, event in enumerate(events):
            try:
                fields, values = encode(event.value)
                key = fixed or self._keys.of(event)
            except RejectError as error:
                refused[at] = str(error)
                continue
            run = last.get(key)
            if run is None or run.fields != fields:
                run = last[key] = _AppendGroup(key, fields)
                runs.append(run)
            run.rows.append(values)
            run.places.append(at)
        return runs, refused
