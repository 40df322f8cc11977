"""What moves records that waited to their partitions, exactly once. Operations without I/O; ``delayed`` has the form.

    WATCH claim facts; MGET claim facts; TREAD orders:delayed ... GROUP mover ... RETRY; TIME
    TLEN orders:3                     is it a stream, is there room
    MULTI
      TMAPPEND orders:3 ...           of those whose time has come
      TACK                            of the same
      TNACK DELAY ...                 of the others: they are due again when their time comes
    EXEC                              nothing happens if the claim or the topic's facts have changed since the WATCH

The server keeps pending messages by their time, so a million that wait cost nothing until they are due.

Rule 1: all calls of one ``turn`` go over one connection, which is not made again in between: the WATCH is its own.
Rule 2: nothing is changed outside of the MULTI. A worker that was stopped for a while and has lost the claim can't even
        put a record off.
Rule 3: after a lost reply the claim is claimed anew. From then on the EXEC can't happen any more, if it hasn't; what it
        did not move is still pending, and due within RETRY_MS.
Rule 4: inside of EXEC the server carries out what follows a command that failed. So the targets are looked at first;
        and what could not be appended all the same, though it was acknowledged, waits anew in an entry of its own.
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
from tidelog.client.steps import Steps, checked
from tidelog.coordination import Claim
from tidelog.topics.delayed import GROUP, DelayedRecord, again, read, stream_of
from tidelog.topics.sending import BYTES, Run, bulk, evictions
from tidelog.topics.settings import Retention, TopicSettings, key_of, read_settings
from tidelog.transport.call import Call

log = logging.getLogger(__name__)
PAGE: Final = 500  # records of a turn
RETRY_MS: Final = 1000  # until what a mover has read, and neither moved nor put off, is read again
FULL_MS: Final = 1000  # until a record whose partition is full is looked at again
ASIDE_MS: Final = 3_600_000  # the same for an entry that is no record, and where the topic is gone
SLACK: Final = 10_000  # entries of the stream that may be there for nothing, beside as many as wait


@dataclass(frozen=True, slots=True)
class DeliveryRound:
    """What a turn did."""

    read: int  # records that were looked at; PAGE: there may be more
    moved: int


class DelayedDelivery:
    """Moves the records of the topic ``name`` while ``claim`` is held."""

    def __init__(self, name: str, claim: Claim) -> None:
        self.name = name
        self.claim = claim
        self.stream = stream_of(name)
        self._facts_key = key_of(name)
        self._turns = count()  # without keys, partitions take turns
        self._told = ""  # what was logged last, so that it is one line

    def begin(self) -> Steps[None]:
        """Make the group, if it isn't there."""
        checked((yield [calls.tread(self.stream, "0", 0, group=GROUP)]))

    def turn(self) -> Steps[DeliveryRound | None]:
        """Look at up to PAGE records, and move those whose time has come. None: the claim is lost.

        What the server refuses is raised; nothing has happened then.
        """
        read_some = calls.tread(self.stream, "0", PAGE, group=GROUP, retry=RETRY_MS)
        _, (there, text), batch, now = checked((yield [*self._watching(), read_some, strings.server_time()]))
        if len(batch.entries) < len(batch):
            log.error("topic %s: records that waited in %s are gone: they were evicted", self.name, self.stream)
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
        """What to do with these entries at this time, by the facts in ``text``."""
        facts = None if text is None else read_settings(self.name, text)
        plan = _Plan(self.stream)
        ready: list[DelayedRecord] = []
        for entry in entries:
            waiting = read(entry)
            if waiting is None:
                log.error("stream %s: the entry %s is no record that waits; it stays there", self.stream, entry.id)
                plan.put_off(entry.id, ASIDE_MS)
            elif waiting.due > now:
                plan.put_off(entry.id, waiting.due - now)
            elif facts is None:
                self._tell(f"topic {self.name}: it is gone, and records wait for it in {self.stream}")
                plan.put_off(entry.id, ASIDE_MS)
            else:
                ready.append(waiting)
        if facts is None or not ready:
            return plan
        ready.sort(key=lambda waiting: (waiting.due, waiting.id))
        placed = [(self._place(waiting, facts.partitions or 1), waiting) for waiting in ready]
        targets = sorted({at for at, _ in placed})
        room = yield from self._room(targets, facts)
        for at, waiting in placed:
            if room[at] > 0:
                room[at] -= 1
                plan.move(f"{self.name}:{at}", waiting)
            else:
                plan.put_off(waiting.id, FULL_MS)
        plan.finish(facts.retention)
        return plan

    def _room(self, targets: Sequence[int], facts: TopicSettings) -> Steps[dict[int, int]]:
        """How many records may be appended to each partition."""
        lengths = yield [calls.tlen(f"{self.name}:{at}") for at in targets]
        limit = facts.retention.hard_limit
        room = {}
        for at, length in zip(targets, lengths, strict=True):
            if isinstance(length, Exception):
                self._tell(f"topic {self.name}: records can't be moved to {self.name}:{at}: {length}")
                room[at] = 0
            else:
                room[at] = PAGE if limit is None else limit - length
                if room[at] <= 0:
                    self._tell(f"topic {self.name}: partition {at} is full ({length:,}): records that are due wait on")
        return room

    def _place(self, waiting: DelayedRecord, partitions: int) -> int:
        return next(self._turns) % partitions if waiting.key is None else crc32(waiting.key) % partitions

    # -- the stream itself -----------------------------------------------------------------------------------
    def tidy(self) -> Steps[bool]:
        """Evict what was moved. Where records that wait for long hold that up, append some of them anew.

        Returns whether there is more to do.
        """
        length, groups, pending = checked(
            (yield [calls.tlen(self.stream), calls.tgroup_list(self.stream), calls.tpending(self.stream, GROUP)])
        )
        offset = next((group.offset for group in groups if group.name == GROUP.encode()), StreamId(0))
        border = StreamId(offset.ms, offset.seq + 1) if pending.lowest is None else min(pending.lowest, offset)
        evicted = 0
        if border > StreamId(0):
            (evicted,) = checked((yield [calls.ttrim(self.stream, before=border)]))
        if length - evicted <= 2 * pending.count + SLACK:
            return False
        return bool((yield from self.renew()))

    def renew(self) -> Steps[int]:
        """Append the oldest records that wait anew; returns how many."""
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
                log.error("stream %s: a record that waited is gone: %s was evicted", self.stream, each.id)
        acknowledged = calls.tack(self.stream, GROUP, *ids)
        if not self.claim.held or (yield from _transaction([*moves, acknowledged])) is None:
            return 0
        return len(ids)

    # -- small things ----------------------------------------------------------------------------------------
    def _watching(self) -> list[Call[Any]]:
        keys = (self.claim.key, self._facts_key)
        return [Call(("WATCH", *keys), _itself), strings.mget(*keys)]

    def _ours(self, there: bytes | None) -> bool:
        if there != self.claim.value:
            self.claim.lost = True
        return self.claim.held

    def _tell(self, text: str) -> None:
        if text != self._told:
            log.warning(text)
            self._told = text


class _Plan:
    """The calls of one transaction."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._runs: list[tuple[str, Run, list[DelayedRecord]]] = []  # targets and what they get, in order
        self._open: dict[str, tuple[Run, list[DelayedRecord]]] = {}  # by target: its last run
        self._evictions: list[Call[Any]] = []
        self._ids: list[StreamId] = []  # of what is moved
        self._put_off: dict[int, list[StreamId]] = {}  # by delay in ms

    @property
    def moved(self) -> int:
        return len(self._ids)

    @property
    def calls(self) -> list[Call[Any]]:
        late = [calls.tnack(self._stream, GROUP, *ids, delay=ms) for ms, ids in self._put_off.items()]
        appends: list[Call[Any]] = [run.append(target) for target, run, _ in self._runs]
        done = [calls.tack(self._stream, GROUP, *self._ids)] if self._ids else []
        return [*appends, *self._evictions, *done, *late]

    def move(self, target: str, waiting: DelayedRecord) -> None:
        fields = waiting.flat[::2]
        run, records = self._open.get(target, (None, []))
        if run is None or run.fields != fields or run.size >= BYTES:
            run, records = self._open[target] = Run(fields), []
            self._runs.append((target, run, records))
        records.append(waiting)
        run.add(bulk(waiting.flat[1::2]))
        self._ids.append(waiting.id)

    def lost(self, replies: Sequence[Any]) -> list[DelayedRecord]:
        """Records that could not be appended, by the replies to ``calls``."""
        runs = zip(self._runs, replies, strict=False)
        return [each for (_, _, records), reply in runs if isinstance(reply, Exception) for each in records]

    def put_off(self, id: StreamId, ms: int) -> None:  # noqa: A002 - its name everywhere else
        self._put_off.setdefault(ms, []).append(id)

    def finish(self, kept: Retention) -> None:
        """Evict after the appends what a topic with overflow="drop" gives up."""
        if kept.drops:
            self._evictions = [call for target in self._open for call in evictions(kept, target)]


def _append(stream: str, flat: Sequence[bytes]) -> Call[Any]:
    return Call(("TAPPEND", stream, *flat), _itself)


def _transaction(made: Sequence[Call[Any]]) -> Steps[list[Any] | None]:
    """Carry calls out in one step; returns their replies, None if what is watched has changed.

    What the server refuses is raised.
    """
    queued = [Call(call.args, _itself, packed=call.packed) for call in made]
    replies = yield [Call(("MULTI",), _itself), *queued, Call(("EXEC",), _itself)]
    (done,) = checked(replies[-1:])
    if done is None:
        return None
    for call, reply in zip(made, done, strict=True):
        if isinstance(reply, Exception):
            log.error("%s %s failed within a transaction: %s", call.args[0], call.args[1], reply)
    return list(done)


def _itself(reply: Any) -> Any:
    return reply
