"""The sink ``stream``: sends a batch of events as TMAPPENDs, in one round trip.

Consecutive events of one stream with the same fields are one TMAPPEND. Several batches can be in flight. All use one
connection, so their entries are in order unless the server rejects one.

In a cluster of several groups, a call is sent again after its slot has moved, while others are executed. Therefore one
TMAPPEND of each stream is in flight at a time; different streams do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis
import redis

from tidelog.client import calls, tracecontext
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.templates import Template, filled_name
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec, with_context
from tidelog.flows.serveraccess import channel
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import Call, Value

#: Codes of errors that an operator can fix: the events are retried.
FIXABLE: Final = frozenset({"WRONGTYPE", "NOPERM", "NOAUTH"})


@dataclass(frozen=True)
class StreamRetention:
    """Which entries a stream retains after an append; all of them if both fields are None."""

    count: int | None = None
    age: float | None = None  # s

    def call(self, key: str) -> Call[Any] | None:
        if self.count is not None:
            return calls.ttrim(key, count=self.count)
        return None if self.age is None else calls.ttrim(key, ms=round(self.age * 1000))


@dataclass
class _AppendGroup:
    """Events that become one TMAPPEND."""

    key: str
    fields: tuple[Any, ...]
    rows: list[Sequence[Value]] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)  # of the events in the batch

    def call(self) -> Call[Any]:
        """Return the TMAPPEND. Raises TypeError or ValueError if a value can't be sent."""
        call = calls.tmappend(self.key, self.fields, self.rows)
        return Call(call.args, call.read, packed=hiredis.pack_command(call.args))  # type: ignore[arg-type] # any length


class StreamWriter:
    """Writes batches to streams. Calls of ``write`` can overlap."""

    def __init__(
        self, where: Access, name: str, key: Template, codec: EntryCodec, evict: StreamRetention,
        sent: Callable[[int], None],
    ) -> None:  # fmt: skip
        """``sent``: counts the bytes of commands."""
        self._where = where
        self._sent = sent
        self._name = name
        self._key = key
        self._codec = codec
        self._evict = evict
        self._channel: AsyncConnection | None = None
        self._turns: dict[str, asyncio.Future[None]] = {}  # by stream: when the last batch with its events is done

    async def open(self) -> None:
        self.close()
        self._channel = await channel(self._where, self._name)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        """See ``Sink.write``."""
        if self._channel is None:
            raise ConnectionError("not connected")
        outcomes: list[Outcome] | None = None
        groups, refused = self._groups(events)
        sent: list[_AppendGroup] = []
        appends: list[Call[Any]] = []
        for group in groups:
            try:
                appends.append(group.call())
                sent.append(group)
            except (TypeError, ValueError, OverflowError):
                for row, at in zip(group.rows, group.indexes, strict=True):
                    single = _AppendGroup(group.key, group.fields, [row], [at])
                    try:
                        appends.append(single.call())
                        sent.append(single)
                    except (TypeError, ValueError, OverflowError) as error:
                        refused[at] = f"it can't be sent: {error}"
        if refused:
            outcomes = [OK] * len(events)
            for at, why in refused.items():
                outcomes[at] = (REJECT, why)
        trims = [call for key in {group.key for group in sent} if (call := self._evict.call(key)) is not None]
        if self._channel.several_groups:
            replies = await self._in_turn(self._channel, [group.key for group in sent], appends, trims)
        else:
            replies = await self._channel.send([*appends, *trims])
        self._sent(sum(len(each.packed or b"") for each in appends))
        for group, reply in zip(sent, replies, strict=False):
            if isinstance(reply, redis.ResponseError):
                outcomes = [OK] * len(events) if outcomes is None else outcomes
                status = RETRY if str(reply).partition(" ")[0] in FIXABLE else REJECT
                for at in group.indexes:
                    outcomes[at] = (status, f"{group.key}: {reply}")
        return outcomes

    async def _in_turn(
        self, channel: AsyncConnection, keys: list[str], appends: list[Call[Any]], trims: list[Call[Any]]
    ) -> list[Any]:  # fmt: skip
        """Return the replies to the appends, which are sent after those of earlier batches to their streams."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = {self._turns[key] for key in keys if key in self._turns}
        self._turns.update(dict.fromkeys(keys, done))
        try:
            if before:
                await asyncio.wait(before)
            replies: list[Any] = [None] * len(appends)
            for positions in _rounds(keys):
                found = await channel.send([appends[at] for at in positions])
                for at, reply in zip(positions, found, strict=True):
                    replies[at] = reply
            if trims:
                await channel.send(trims)
            return replies
        finally:
            done.set_result(None)
            for key in keys:
                if self._turns.get(key) is done:
                    del self._turns[key]

    def _groups(self, events: list[Event]) -> tuple[list[_AppendGroup], dict[int, str]]:
        """Return (groups, in an order that preserves the order of each stream; by index, why an event is rejected)."""
        refused: dict[int, str] = {}
        groups: list[_AppendGroup] = []
        last: dict[str, _AppendGroup] = {}  # by stream
        encode, fixed, context = self._codec.encode, self._key.fixed, tracecontext.current()
        for at, event in enumerate(events):
            try:
                fields, values = with_context(encode(event.value), event.meta, context)
                key = fixed or filled_name(self._key, event)
            except RejectError as error:
                refused[at] = str(error)
                continue
            group = last.get(key)
            if group is None or group.fields != fields:
                group = last[key] = _AppendGroup(key, fields)
                groups.append(group)
            group.rows.append(values)
            group.indexes.append(at)
        return groups, refused


def _rounds(keys: Sequence[str]) -> list[list[int]]:
    """Return the positions of the keys in lists: each has a key once, and the positions of a key are in order."""
    rounds: list[list[int]] = []
    seen: Counter[str] = Counter()
    for at, key in enumerate(keys):
        if seen[key] == len(rounds):
            rounds.append([])
        rounds[seen[key]].append(at)
        seen[key] += 1
    return rounds
