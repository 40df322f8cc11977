"""Reads streams with a group: each entry is pending on the server until its event is settled.

    ok, discard   TACK
    retry         TNACK, with a delay that grows with the entry's deliveries
    reject        a dead letter and the acknowledgement in one MULTI; also after the last retry of ``on_error``

``GroupReader`` reads the streams, touches the entries in flight, and skips those that are redelivered meanwhile.

Rule 1: If a read returns entries after the source was paused, they are returned to the group (TNACK), so a paused
        source holds no entries. Events that were sent before the pause continue.
Rule 2: An event's attempts are the deliveries that the server counts, so they survive this process. An entry that was
        delivered more often than ``on_error`` permits and never settled may have ended its process. It becomes a dead
        letter and is not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis

from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.connectoroptions import SourceErrorPolicy
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD, REJECT, Token
from tidelog.flows.connectors.tidelog.deadletters import fields_of
from tidelog.flows.connectors.tidelog.entrywaiter import EntryWaiter
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.flows.connectors.tidelog.streamsource import StreamSource
from tidelog.options.start import StartPosition
from tidelog.topics.deadletterwriter import DeadLetterFields, DeadLetterWriter
from tidelog.topics.groupreader import GroupStream, entry_of, touch
from tidelog.transport.backoff import Backoff
from tidelog.transport.call import Call
from tidelog.transport.cancellation import cancel_and_wait

FAREWELL: Final = 2.0  # s to return entries in flight when the flow ends

log = logging.getLogger("tidelog.flows")


class GroupSource(StreamSource[GroupStream]):
    """The source with a group. Times are in seconds. ``letters``: the dead-letter queue."""

    def __init__(
        self, keys: list[str], group: str, start: StartPosition, waiter: EntryWaiter, codec: EntryCodec,
        context: ConnectorContext, *, retry: float, policy: SourceErrorPolicy, letters: str,
    ) -> None:  # fmt: skip
        streams = [GroupStream(key, group, start.last_id, round(retry * 1000), exact=True) for key in keys]
        super().__init__(streams, waiter, codec, context)
        self._about = {} if codec.name == "plain" else {"codec": codec.name}
        self._retry = retry
        self._most = policy.max_attempts
        self._action = policy.action
        self._backoff = policy.retry.backoff if policy.retry is not None else Backoff()
        self._letters = DeadLetterWriter(letters)
        self._attempts: dict[str, int] = {}  # by event ID: of entries in flight, if it is not the first
        self._toucher: asyncio.Task[None] | None = None
        self._only = streams[0] if len(keys) == 1 else None

    async def open(self) -> None:
        await super().open()
        touching = touch(self.streams.values, self._retry, lambda _, call: self._waiter.send([call]))
        self._toucher = asyncio.get_running_loop().create_task(touching)

    async def close(self) -> None:
        await cancel_and_wait(self._toucher)
        channel = self._waiter.channel
        back = [stream.nack(stream.in_flight) for stream in self.streams.values() if stream.in_flight]
        if self._context.ended and back and channel is not None and channel.lost is None:
            try:
                async with asyncio.timeout(FAREWELL):
                    await self._waiter.send(back)
                self._waiter.notify_due([*self.streams])
            except (OSError, TimeoutError) as error:
                log.debug("%s: not returned, so due after %g s: %s", self._context.flow, self._retry, error)
            for stream in self.streams.values():
                stream.in_flight.clear()
        await super().close()

    async def received(self, events: list[Event], streams: Sequence[GroupStream]) -> list[Event] | None:
        """See ``StreamSource.received``."""
        read = events
        try:
            if any(stream.redelivered for stream in streams):
                events = await self._counted(events, streams)
            if events and not self._context.accepting:  # Rule 1
                await self._settle({0: [event.id for event in events]})
                self.heat(self.streams)  # so that all are read when the source may send again
                return None
        except Exception:  # the events are not sent, so their entries must not be touched: they are redelivered
            names = [event.id for event in read]
            for stream, ids in self._by_stream(names).items():
                stream.drop(ids)
            self._forget(names)
            raise
        return events

    async def _counted(self, events: list[Event], streams: Sequence[GroupStream]) -> list[Event]:
        """Set the events' attempts, and remove those that were delivered too often (Rule 2)."""
        for stream in streams:
            if again := stream.take_redelivered():
                found = await self._deliveries(stream, again)
                prefix = self._prefixes[stream.stream]
                self._attempts |= {prefix + entry_id.decode(): count for entry_id, count in found.items()}
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

    async def _deliveries(self, stream: GroupStream, ids: list[bytes]) -> dict[bytes, int]:
        try:
            return await self._waiter.run(stream.deliveries(ids))
        except redis.ResponseError as error:  # such as a deleted group: the runtime reconnects
            raise ConnectionError(f"the server refuses: {error}") from None

    # -- settling --------------------------------------------------------------------------------------------
    async def settled(self, tokens: Sequence[Token]) -> None:
        """See ``Source.settled``. Dead letters are written first: if a later step fails, a repetition skips them."""
        if all(each.status <= DISCARD for each in tokens):
            await self._settle({None: [each.key for each in tokens]})
            return
        outcomes: dict[int | None, list[str]] = {}  # by delay in ms; None: acknowledged
        spent: dict[str, tuple[bool, str]] = {}
        for token in tokens:
            name, status = token.key, token.status
            stream, entry_id = self._origin(name)
            if entry_id not in stream.in_flight:  # settled before, by a call whose reply was lost
                continue
            if status <= DISCARD:
                outcomes.setdefault(None, []).append(name)
                continue
            attempt = self._attempts.get(name, 1)
            if status != REJECT and (self._most is None or attempt < self._most):
                delay = self._backoff.delay(attempt, self._context.flow_context.random.random)
                outcomes.setdefault(round(delay * 1000), []).append(name)
            elif self._action in ("pause", "halt"):
                outcomes.setdefault(0, []).append(name)
                self._context.escalate(self._action, f"{name}: {token.reason}")
            else:
                spent[name] = (status == REJECT, token.reason)
        if spent:
            await self._bury(spent)
        await self._settle(outcomes)
        delays = [delay for delay in outcomes if delay is not None]
        if delays:
            asyncio.get_running_loop().call_later(min(delays) / 1000 + 0.005, self._due)

    def _due(self) -> None:
        """Read again, because entries are due."""
        self.heat(self.streams)
        self._waiter.ring()

    async def _settle(self, outcomes: dict[int | None, list[str]]) -> None:
        """Acknowledge or return entries. ``outcomes``: their event IDs by delay in ms; None: acknowledge them."""
        done = [(delay, self._by_stream(names)) for delay, names in outcomes.items()]
        await self._waiter.send([
            stream.ack(ids) if delay is None else stream.nack(ids, delay)
            for delay, some in done
            for stream, ids in some.items()
        ])  # fmt: skip
        for _, some in done:
            for stream, ids in some.items():
                stream.drop(ids)
        self._forget(name for names in outcomes.values() for name in names)
        if outcomes.keys() - {None}:
            self._waiter.notify_due([*self.streams])

    def _forget(self, names: Iterable[str]) -> None:
        if self._attempts:
            for name in names:
                self._attempts.pop(name, None)

    def _origin(self, name: str) -> tuple[GroupStream, bytes]:
        """Return (stream, entry ID) of an event."""
        if self._only is not None:
            return self._only, name.encode()
        key, _, entry_id = name.rpartition("/")
        return self.streams[key], entry_id.encode()

    def _by_stream(self, names: Iterable[str]) -> dict[GroupStream, list[bytes]]:
        if self._only is not None:
            return {self._only: [name.encode() for name in names]}
        found: dict[GroupStream, list[bytes]] = {}
        for stream, entry_id in map(self._origin, names):
            found.setdefault(stream, []).append(entry_id)
        return found

    async def _bury(self, spent: dict[str, tuple[bool, str]]) -> None:
        """Write dead letters, or only acknowledge if the action is ``skip``.

        An entry that is no longer pending has a dead letter, or was settled by another reader.
        """
        skip, count = self._action == "skip", 0
        letters: list[DeadLetterFields] = []
        acks: list[Call[Any]] = []
        origins = self._by_stream(spent)
        for stream, ids in origins.items():
            pending = await self._deliveries(stream, ids)
            left = [each for each in ids if each in pending and each in stream.in_flight]
            count += len(left)
            acks += [stream.ack(left)] if left else []
            for entry_id in left:
                row, name = stream.in_flight[entry_id], self._prefixes[stream.stream] + entry_id.decode()
                rejected, reason = spent[name]
                if skip:
                    self._context.flow_context.given_up.add(self._context.name, reason, name, row[1:])
                    continue
                letters.append(
                    fields_of(
                        stream.stream, entry_of(row), self._context.flow, self._context.name, reason,
                        self._attempts.get(name, 1), rejected=rejected,
                    )
                )  # fmt: skip
        if skip and acks:
            await self._waiter.send(acks)
        elif acks:
            try:
                await self._waiter.run(self._letters.write(letters, acks))
            except redis.ResponseError as error:
                raise RuntimeError(f"dead letters to {self._letters.topic}: {error}") from None
        if count:
            self._context.count("skipped" if skip else "dead", count)
        for stream, ids in origins.items():
            stream.drop(ids)
        self._forget(spent)
