"""Moves delayed records to their partitions, exactly once. Operations without I/O; ``delayed`` defines the format.

    WATCH claim settings; MGET claim settings; TREAD orders:delayed ... GROUP mover ... RETRY; TIME
    TLEN orders:3                     whether it is a stream and has room
    MULTI
      TMAPPEND orders:3 ...           the records that are due
      TACK                            the same records
      TNACK DELAY ...                 the others: they become due again at their time
    EXEC                              nothing happens if the claim or the settings have changed since the WATCH

The server orders pending entries by their due time, so a million delayed records cost nothing until they are due.

Rule 1: all calls of one ``turn`` use the same connection, which is not reopened in between, because of the WATCH.
Rule 2: nothing is changed outside the MULTI. A worker that was suspended and has lost the claim can't even postpone a
        record.
Rule 3: after a lost reply, the claim is claimed again. After that, the EXEC can no longer be executed if it was not
        executed before. The records that it did not move are still pending, and due within RETRY_MS.
Rule 4: inside EXEC, the server executes the commands that follow a failed one. The targets are therefore checked first.
        A record that was acknowledged but could not be appended is stored again in a new entry.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final
from zlib import crc32

from tidelog.client import calls, strings
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked, transaction
from tidelog.coordination import Claim
from tidelog.topics.delayed import GROUP, DelayedRecord, again, read, stream_of
from tidelog.topics.groupreader import group_offset
from tidelog.topics.sending import BYTES, PartitionBatch, bulk
from tidelog.topics.settings import TopicSettings, key_of, read_settings
from tidelog.transport.call import Call

log = logging.getLogger(__name__)
PAGE: Final = 500  # records of a turn
RETRY_MS: Final = 1000  # until a record that was read, but neither moved nor postponed, is redelivered
FULL_MS: Final = 1000  # until a record whose partition is full is checked again
ASIDE_MS: Final = 3_600_000  # the same for an invalid entry, and if the topic was deleted
SLACK: Final = 10_000  # obsolete entries that may remain in the stream, in addition to as many as are delayed


@dataclass(frozen=True, slots=True)
class DeliveryRound:
    """The result of a turn."""

    read: int  # records that were checked; PAGE: there may be more
    moved: int


class DelayedDelivery:
    """Moves the records of the topic ``name`` while ``claim`` is held."""

    def __init__(self, name: str, claim: Claim) -> None:
        self.name = name
        self.claim = claim
        self.stream = stream_of(name)
        self._settings_key = key_of(name)
        self._turns = count()  # for round-robin, without keys
        self._logged = ""  # the last text, which is not repeated

    def begin(self) -> Steps[None]:
        """Create the group unless it exists."""
        checked((yield [calls.tread(self.stream, "0", 0, group=GROUP)]))

    def turn(self) -> Steps[DeliveryRound | None]:
        """Check up to PAGE records and move those that are due. Returns None if the claim is lost.

        Raises error replies; nothing has changed then.
        """
        read_some = calls.tread(self.stream, "0", PAGE, group=GROUP, retry=RETRY_MS)
        _, (there, text), batch, now = checked((yield [*self._watching(), read_some, strings.server_time()]))
        if len(batch.entries) < len(batch):
            log.error("topic %s: delayed records in %s were evicted and are lost", self.name, self.stream)
        while batch.entries:
            if not self._ours(there):
                return None
            plan = yield from self._plan(batch.entries, now, text)
            if not self.claim.held:
                return None
            done = yield from _transaction(plan.calls)
            if done is not None:
                lost = plan.lost(done)
                if lost:
                    checked((yield [_append(self.stream, again(waiting)) for waiting in lost]))
                return DeliveryRound(len(batch), plan.moved - len(lost))
            _, (there, text) = checked((yield self._watching()))
        return DeliveryRound(len(batch), 0) if self._ours(there) else None

    def _plan(self, entries: Sequence[Entry], now: int, text: bytes | None) -> Steps[_Plan]:
        """Decide what to do with these entries now, according to the settings in ``text``."""
        settings = None if text is None else read_settings(self.name, text)
        plan = _Plan(self.stream)
        ready: list[DelayedRecord] = []
        for entry in entries:
            waiting = read(entry)
            if waiting is None:
                log.error("stream %s: the entry %s is not a delayed record; it remains there", self.stream, entry.id)
                plan.put_off(entry.id, ASIDE_MS)
            elif waiting.due > now:
                plan.put_off(entry.id, waiting.due - now)
            elif settings is None:
                self._log(f"topic {self.name}: it was deleted, and {self.stream} has delayed records for it")
                plan.put_off(entry.id, ASIDE_MS)
            else:
                ready.append(waiting)
        if settings is None or not ready:
            return plan
        ready.sort(key=lambda waiting: (waiting.due, waiting.id))
        placed = [(self._place(waiting, settings.partitions or 1), waiting) for waiting in ready]
        targets = sorted({at for at, _ in placed})
        room = yield from self._room(targets, settings)
        for at, waiting in placed:
            if room[at] > 0:
                room[at] -= 1
                plan.move(f"{self.name}:{at}", waiting)
            else:
                plan.put_off(waiting.id, FULL_MS)
        return plan

    def _room(self, targets: Sequence[int], settings: TopicSettings) -> Steps[dict[int, int]]:
        """Return how many records may be appended to each partition."""
        lengths = yield [calls.tlen(f"{self.name}:{at}") for at in targets]
        limit = settings.retention.hard_limit
        room = {}
        for at, length in zip(targets, lengths, strict=True):
            if isinstance(length, Exception):
                self._log(f"topic {self.name}: records can't be moved to {self.name}:{at}: {length}")
                room[at] = 0
            else:
                room[at] = PAGE if limit is None else limit - length
                if room[at] <= 0:
                    self._log(f"topic {self.name}: partition {at} is full ({length:,}): due records stay delayed")
        return room

    def _place(self, waiting: DelayedRecord, partitions: int) -> int:
        return next(self._turns) % partitions if waiting.key is None else crc32(waiting.key) % partitions

    # -- the stream itself -----------------------------------------------------------------------------------
    def tidy(self) -> Steps[bool]:
        """Evict moved records. If records with long delays prevent that, append some of them again.

        Returns whether there is more to do.
        """
        length, found, pending = checked(
            (yield [calls.tlen(self.stream), group_offset(self.stream, GROUP), calls.tpending(self.stream, GROUP)])
        )
        offset = found or StreamId(0)
        border = StreamId(offset.ms, offset.seq + 1) if pending.lowest is None else min(pending.lowest, offset)
        evicted = 0
        if border > StreamId(0):
            (evicted,) = checked((yield [calls.ttrim(self.stream, before=border)]))
        if length - evicted <= 2 * pending.count + SLACK:
            return False
        return bool((yield from self.renew()))

    def renew(self) -> Steps[int]:
        """Append the oldest delayed records to the stream again. Returns their number."""
        _, (there, _), oldest = checked(
            (yield [*self._watching(), calls.tpending_range(self.stream, GROUP, count=PAGE)])
        )  # fmt: skip
        if not oldest or not self._ours(there):
            return 0
        found = checked((yield [calls.trange(self.stream, each.id, each.id) for each in oldest]))
        moves: list[Call[Any]] = []
        ids = []
        for each, entries in zip(oldest, found, strict=True):
            ids.append(each.id)
            if entries:
                waiting = read(entries[0])
                moves.append(_append(self.stream, entries[0].flat if waiting is None else again(waiting)))
            else:
                log.error("stream %s: the delayed record %s was evicted and is lost", self.stream, each.id)
        acknowledged = calls.tack(self.stream, GROUP, *ids)
        if not self.claim.held or (yield from _transaction([*moves, acknowledged])) is None:
            return 0
        return len(ids)

    # -- helpers ---------------------------------------------------------------------------------------------
    def _watching(self) -> list[Call[Any]]:
        return strings.watch_and_get([self.claim.key, self._settings_key])

    def _ours(self, there: bytes | None) -> bool:
        if there != self.claim.value:
            self.claim.lost = True
        return self.claim.held

    def _log(self, text: str) -> None:
        if text != self._logged:
            log.warning(text)
            self._logged = text


class _Plan:
    """The calls of one transaction."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._batches: list[tuple[str, PartitionBatch, list[DelayedRecord]]] = []  # targets and their records, in order
        self._open: dict[str, tuple[PartitionBatch, list[DelayedRecord]]] = {}  # by target: the last one
        self._ids: list[StreamId] = []  # of the records that are moved
        self._put_off: dict[int, list[StreamId]] = {}  # by delay in ms

    @property
    def moved(self) -> int:
        return len(self._ids)

    @property
    def calls(self) -> list[Call[Any]]:
        late = [calls.tnack(self._stream, GROUP, *ids, delay=ms) for ms, ids in self._put_off.items()]
        appends: list[Call[Any]] = [batch.append(target) for target, batch, _ in self._batches]
        done = [calls.tack(self._stream, GROUP, *self._ids)] if self._ids else []
        return [*appends, *done, *late]

    def move(self, target: str, waiting: DelayedRecord) -> None:
        fields = waiting.flat[::2]
        batch, records = self._open.get(target, (None, []))
        if batch is None or batch.fields != fields or batch.size >= BYTES:
            batch, records = self._open[target] = PartitionBatch(fields), []
            self._batches.append((target, batch, records))
        records.append(waiting)
        batch.add(bulk(waiting.flat[1::2]))
        self._ids.append(waiting.id)

    def lost(self, replies: Sequence[Any]) -> list[DelayedRecord]:
        """Return the records that could not be appended, given the replies to ``calls``."""
        batches = zip(self._batches, replies, strict=False)
        return [each for (_, _, records), reply in batches if isinstance(reply, Exception) for each in records]

    def put_off(self, id: StreamId, ms: int) -> None:  # noqa: A002 - its name everywhere else
        self._put_off.setdefault(ms, []).append(id)


def _append(stream: str, flat: Sequence[bytes]) -> Call[Any]:
    return Call(("TAPPEND", stream, *flat), _itself)


def _transaction(made: Sequence[Call[Any]]) -> Steps[list[Any] | None]:
    """Execute calls in one step like ``transaction``, and log those that failed."""
    done = yield from transaction(made)
    for call, reply in zip(made, done or (), strict=False):
        if isinstance(reply, Exception):
            log.error("%s %s failed within a transaction: %s", call.args[0], call.args[1], reply)
    return done


def _itself(reply: Any) -> Any:
    return reply
