"""Reads streams with a group: each entry is pending on the server until its event is settled.

    ok, discard   TACK
    retry         TNACK, with a delay that grows with the entry's deliveries
    reject        a dead letter and the acknowledgement in one MULTI; also after the last retry of ``on_error``

Rule 1: Entries in flight are touched (TTOUCH) before their ``retry`` time expires, so they are not delivered to another
        reader while this process lives. If the process dies, its entries are redelivered after ``retry``.
Rule 2: An entry that is redelivered to this reader while it is in flight (because the server lost its last second, or
        the process was stopped) is skipped: its settlement is already on the way.
Rule 3: If a read returns entries after the source was paused, they are returned to the group (TNACK), so a paused
        source holds no entries. Events that were sent before the pause continue.
Rule 4: An event's attempts are the deliveries that the server counts, so they survive this process. The count is read
        only for entries that are not new, which are those up to the group's offset before the read. An entry that was
        delivered more often than ``on_error`` permits and never settled may have ended its process. It becomes a dead
        letter and is not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.connectoroptions import SourceErrorPolicy
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, REJECT, Token
from tidelog.flows.connectors.tidelog import deadletters
from tidelog.flows.connectors.tidelog.deadletters import DeadLetterWriter
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.options.start import StartPosition
from tidelog.transport.access import Access
from tidelog.transport.backoff import Backoff
from tidelog.transport.call import Call

FAREWELL: Final = 2.0  # s to return entries in flight when the flow ends
ZERO: Final = StreamId(0)

log = logging.getLogger("tidelog.flows")

Row = list[bytes]  # ID, field, value, ...


class GroupReader:
    """The reader of one source. Times are in seconds. ``letters``: the dead-letter topic."""

    def __init__(
        self, where: Access, name: str, keys: list[str], group: str, start: StartPosition, codec: EntryCodec,
        context: ConnectorContext, *, retry: float, policy: SourceErrorPolicy, letters: str,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._group = group
        self._codec = codec
        self._context = context
        self._retry = retry
        self._most = policy.max_attempts
        self._action = policy.action
        self._backoff = policy.retry.backoff if policy.retry is not None else Backoff()
        self._waiter = EntryWaiter(where, name, group)
        self._box = DeadLetterWriter(letters)
        self._about = {} if codec.name == "plain" else {"codec": codec.name}
        self._prefixes = {key: f"{key}/" if len(keys) > 1 else "" for key in keys}
        self._hot: dict[str, None] = {}
        self._offsets: dict[str, StreamId] = {}
        self._held: dict[str, Row] = {}  # by event ID: delivered here, and not settled on the server
        self._attempts: dict[str, int] = {}  # of entries in flight, if it is not the first
        self._reads: deque[tuple[float, list[str]]] = deque()  # (when to touch the entries, their event IDs)
        self._kept = asyncio.Event()  # there are entries in flight
        self._keeper: asyncio.Task[None] | None = None
        options = ("GROUP", group, 0, "RETRY", round(retry * 1000), 0)
        self._lists = {key: Call(("TGROUP", "LIST", key), self._offset) for key in keys}
        self._read = {key: (("TREAD", key, start.last_id), options) for key in keys}

    async def open(self) -> None:
        await self._waiter.open()
        self._hot = dict.fromkeys(self._keys)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        channel = self._waiter.channel
        if self._context.ended and self._held and channel is not None and channel.lost is None:
            try:
                async with asyncio.timeout(FAREWELL):
                    await self._waiter.send(self._nacks({0: list(self._held)}))
                self._waiter.notify_due(self._keys)
            except (OSError, TimeoutError) as error:
                log.debug("%s: not returned, so due after %g s: %s", self._context.flow, self._retry, error)
            self._held.clear()
        await self._waiter.close()

    def interrupt(self) -> None:
        self._waiter.interrupt()

    # -- reading ---------------------------------------------------------------------------------------------
    async def pull(self, limit: int) -> list[Event]:
        """See ``Source.pull``."""
        while True:
            if not self._hot:
                due_in = None if self._waiter.warm() else await self._waiter.due_in(self._keys)
                found = await self._waiter.until(self._offsets, due_in)
                if not found:
                    return []
                self._hot = dict.fromkeys(found)
            events, blocked = await self._round(limit)
            if events:
                self._waiter.found()
            if events or blocked:
                return events

    async def _round(self, limit: int) -> tuple[list[Event], bool]:
        """Read the streams that may have entries once.

        Returns (events, whether entries were returned to the group because the source is paused).
        """
        wanted = list(self._hot)[:limit]
        room = limit // len(wanted)
        requests: list[Call[Any]] = []
        for key in wanted:
            head, options = self._read[key]
            requests += (self._lists[key], Call((*head, room, *options), _as_it_is))
        replies = await self._waiter.send(requests)
        new: list[str] = []
        events: list[Event] = []
        again: dict[str, Row] = {}
        for key, offset, rows in zip(wanted, replies[::2], replies[1::2], strict=True):
            self._offsets[key] = offset or self._offsets.get(key, ZERO)
            del self._hot[key]
            if len(rows) >= room:
                self._hot[key] = None  # behind the others
            if rows:
                events += self._events(key, offset, rows, new, again)
        if again:
            events = await self._counted(events, again)
        if new:
            self._reads.append((asyncio.get_running_loop().time() + self._retry / 2, new))
            self._kept.set()
        if new and not self._context.accepting:  # Rule 3
            ids = [each for each in new if each in self._held]
            await self._waiter.send(self._nacks({0: ids}))
            self._drop(ids)
            self._waiter.notify_due(self._keys)
            self._hot = dict.fromkeys(self._keys)  # so that all are read when the source may send again
            return [], True
        return events, False

    def _events(
        self, key: str, offset: StreamId | None, rows: Sequence[Row | None], new: list[str], again: dict[str, Row]
    ) -> list[Event]:  # fmt: skip
        """Return the events of one stream. Adds their IDs to ``new``, and possible redeliveries to ``again``."""
        events = []
        held, decode, prefix = self._held, self._codec.decode, self._prefixes[key]
        about = {"stream": key, **self._about}
        looking = offset is not None  # redeliveries come first, then new entries in order
        for row in rows:
            if row is None:
                self._context.count("missing")
                continue
            name = prefix + row[0].decode()
            if name in held:  # Rule 2
                self._context.count("delivered_in_hand")
                continue
            if looking and offset is not None:
                if StreamId.parse(row[0]) <= offset:
                    again[name] = row
                else:
                    looking = False
            held[name] = row
            new.append(name)
            flat = row[1:]
            try:
                events.append(Event(decode(flat), about.copy(), name))
            except ValueError as error:
                events.append(Event(flat, {"stream": key, "error": str(error)}, name, path="err"))
        last = rows[-1]
        if last is not None and not looking:
            self._offsets[key] = max(self._offsets[key], StreamId.parse(last[0]))
        return events

    async def _counted(self, events: list[Event], again: dict[str, Row]) -> list[Event]:
        """Set the events' attempts, and remove those that were delivered too often (Rule 4)."""
        found = await self._waiter.send([self._pending(name) for name in again])
        for name, pending in zip(again, found, strict=True):
            if pending:
                self._attempts[name] = pending[0].deliveries
        spent = {}
        for event in events:
            attempt = self._attempts.get(event.id, 1)
            event.attempt = attempt
            if self._most is not None and attempt > self._most and self._action not in ("pause", "halt"):
                reason = f"delivered {attempt} times and never settled: it may have ended its process"
                spent[event.id] = (False, reason)
        if spent:
            await self._bury(spent)
            events = [each for each in events if each.id not in spent]
        return events

    def _pending(self, name: str) -> Call[Any]:
        key, at = self._place(name)
        return calls.tpending_range(key, self._group, at, at, 1)

    def _place(self, name: str) -> tuple[str, str]:
        """Return (stream, entry ID) of an event."""
        if len(self._keys) == 1:
            return self._keys[0], name
        key, _, at = name.rpartition("/")
        return key, at

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, tokens: Sequence[Token]) -> None:
        """See ``Source.settled``. Dead letters are written first: if a later step fails, a repetition skips them."""
        if all(each.status <= DISCARD for each in tokens):
            ids = [each.key for each in tokens]
            await self._waiter.send(self._acks(ids))
            self._drop(ids)
            return
        good: list[str] = []
        back: dict[int, list[str]] = {}  # by delay in ms
        spent: dict[str, tuple[bool, str]] = {}
        for token in tokens:
            name, status = token.key, token.status
            if name not in self._held:  # settled before, by a call whose reply was lost
                continue
            if status <= DISCARD:
                good.append(name)
                continue
            attempt = self._attempts.get(name, 1)
            if status != REJECT and (self._most is None or attempt < self._most):
                delay = self._backoff.delay(attempt, self._context.flow_context.random.random)
                back.setdefault(round(delay * 1000), []).append(name)
            elif self._action in ("pause", "halt"):
                back.setdefault(0, []).append(name)
                self._context.escalate(self._action, f"{name}: {token.reason}")
            else:
                spent[name] = (status == REJECT, token.reason)
        if spent:
            await self._bury(spent)
        await self._waiter.send([*self._acks(good), *self._nacks(back)])
        self._drop(good)
        for names in back.values():
            self._drop(names)
        if back:
            self._waiter.notify_due(self._keys)
            self._wake_in(min(back) / 1000)

    def _wake_in(self, seconds: float) -> None:
        """Schedule a read for the time at which entries become due."""

        def due() -> None:
            self._hot = dict.fromkeys(self._keys)
            self._waiter.ring()

        asyncio.get_running_loop().call_later(seconds + 0.005, due)

    def _acks(self, names: Sequence[str]) -> list[Call[Any]]:
        return [calls.tack(key, self._group, *ids) for key, ids in self._by_key(names)]

    def _nacks(self, names: dict[int, list[str]]) -> list[Call[Any]]:
        return [
            calls.tnack(key, self._group, *ids, delay=delay)
            for delay, some in names.items()
            for key, ids in self._by_key(some)
        ]

    def _by_key(self, names: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
        if not names:
            return ()
        if len(self._keys) == 1:
            return ((self._keys[0], names),)
        found: dict[str, list[str]] = {}
        for name in names:
            key, at = self._place(name)
            found.setdefault(key, []).append(at)
        return found.items()

    def _drop(self, names: Iterable[str]) -> None:
        held, attempts = self._held, self._attempts
        for name in names:
            held.pop(name, None)
        if attempts:
            for name in names:
                attempts.pop(name, None)

    async def _bury(self, spent: dict[str, tuple[bool, str]]) -> None:
        """Write dead letters, or only acknowledge if the action is ``skip``.

        An entry that is no longer pending has a dead letter, or was settled by another reader.
        """
        channel = self._waiter.channel
        if channel is None:
            raise ConnectionError("not connected")
        found = await self._waiter.send([self._pending(name) for name in spent])
        skip = self._action == "skip"
        made, names = [], []
        for (name, (rejected, reason)), pending in zip(spent.items(), found, strict=True):
            row = self._held.get(name)
            if not pending or row is None:
                continue
            names.append(name)
            if skip:
                self._context.flow_context.given_up.add(self._context.name, reason, name, row[1:])
                continue
            key, at = self._place(name)
            fields = deadletters.fields_of(
                key, Entry(StreamId.parse(at), row[1:]), self._context.flow, self._context.name, reason,
                self._attempts.get(name, 1), rejected=rejected,
            )  # fmt: skip
            made.append(fields)
        if skip and names:
            await self._waiter.send(self._acks(names))
            self._context.count("skipped", len(names))
        elif made:
            try:
                await self._box.write(channel, made, self._acks(names))
            except redis.ResponseError as error:
                raise RuntimeError(f"dead letters to {self._box.topic}: {error}") from None
            self._context.count("dead", len(made))
        self._drop(spent)

    # -- entries in flight -----------------------------------------------------------------------------------
    async def _keep(self) -> None:
        """Touch the entries in flight (Rule 1)."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._reads:
                self._kept.clear()
                await self._kept.wait()
            await asyncio.sleep(max(0.0, self._reads[0][0] - loop.time()))
            due: list[str] = []
            while self._reads and self._reads[0][0] <= loop.time():
                due += [name for name in self._reads.popleft()[1] if name in self._held]
            if not due:
                continue
            ms = round(self._retry * 1000)
            self._reads.append((loop.time() + self._retry / 2, due))
            try:
                await self._waiter.send([
                    calls.ttouch(key, self._group, ms, *ids) for key, ids in self._by_key(due)
                ])  # fmt: skip
            except OSError:
                await asyncio.sleep(1.0)  # the next read or settlement fails too, and the runtime reconnects

    def _offset(self, reply: list[Any]) -> StreamId | None:
        """Return the group's offset from the reply of TGROUP LIST; None: the group does not exist yet."""
        name = self._group.encode()
        for group in reply:
            facts = group if isinstance(group, dict) else dict(zip(group[::2], group[1::2], strict=True))
            if facts[b"name"] == name:
                return StreamId.parse(facts[b"offset"])
        return None


def _as_it_is(reply: Any) -> Any:
    return reply
