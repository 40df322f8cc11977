"""The offsets of a query: its position in each stream, the limits of the next batch, and lost entries.

An offset, as Spark stores it in the checkpoint, is ``{"key": "ms.seq", ...}``: all entries up to and including that ID
were read.

Rule 1: an ID in an offset is ``0.0`` or the ID of an entry that existed when the offset was written. If that entry does
        not exist later, and was neither evicted nor deleted, the stream is not the one that was read before.
Rule 2: an offset never decreases.
Rule 3: a key that is not in an offset is new, and is read from its beginning.
Rule 4: a key that is no longer subscribed to keeps its ID in the offset.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tidelog.client import calls
from tidelog.client.entries import SEQ_MAX, Entry, Info, StreamId
from tidelog.client.steps import existing
from tidelog.history.planning import HistoryPlanner
from tidelog.spark.filters import MS_MAX, Narrowed
from tidelog.spark.options import ReadOptions
from tidelog.spark.positions import EARLIEST, Position, Positions
from tidelog.spark.topicread import ReadTopic
from tidelog.spark.watch import NewEntryWatch
from tidelog.transport.leader import LeaderConnection

ZERO: Final = StreamId(0, 0)
LASTS_FOR: Final = 0.02  # seconds for which last IDs are reused: Spark calls about 90 times per second
KEYS_FOR: Final = 1.0  # seconds for which the keys that match a pattern are reused
SCAN_COUNT: Final = 1000
SAMPLE: Final = 20  # entries of a stream from which the entry size is estimated

Ids = dict[str, StreamId]

log = logging.getLogger(__name__)


class DataLossError(Exception):
    """Entries that the query has not read were lost."""


class TopicChangedError(DataLossError):
    """The topic of the query was deleted or replaced."""


class NoOffsetError(Exception):
    """A stream has no entry from the starting time on."""


class NoStreamError(Exception):
    """A stream that an option names does not exist."""


def data_loss(source: ReadOptions, key: str, after: StreamId, info: Info | None, what: str) -> DataLossError:
    """Return the error for lost entries after an ID. ``info`` is None if the key was deleted; ``what`` is the loss."""
    start = source.starting.named(key)
    if start is not None and start.kind == "id" and after == before(start.id):
        wanted = f"what begins with ID {start.text}"
    else:
        wanted = f"what follows ID {after}"
    if info is None:
        there = "there is no such key"
    elif info.first is None:
        there = f"it is empty, its last ID was {info.last}"
    else:
        there = f"the first ID there is {info.first}, the last {info.last}"
    return DataLossError(
        f"data loss in stream {key!r}: {what}; {wanted} was wanted, {there}. With the option "
        "failOnDataLoss=false the query goes on with what is there."
    )


def lost(source: ReadOptions, key: str, after: StreamId, info: Info | None) -> DataLossError | None:
    """Return the error if entries after ``after`` were lost or the stream ends before that ID, otherwise None."""
    if info is None:
        return data_loss(source, key, after, None, "it was deleted") if after > ZERO else None
    if info.evicted_to > after:
        return data_loss(source, key, after, info, f"entries up to {info.evicted_to} were evicted")
    if info.last < after:
        return data_loss(source, key, after, info, "it is shorter than before")
    return None


def before(wanted: StreamId) -> StreamId:
    """Return the ID directly before this one; 0.0 for 0.0."""
    if wanted.seq:
        return StreamId(wanted.ms, wanted.seq - 1)
    return StreamId(wanted.ms - 1, SEQ_MAX) if wanted.ms else wanted


def is_text(key: bytes) -> bool:
    """Return whether a key is UTF-8 and can be part of an offset, which is JSON."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class OffsetRange:
    """The part of one stream that a batch reads: the entries after one ID, up to another one."""

    key: str
    after: StreamId  # exclusive
    end: StreamId  # inclusive


class IdRange(Protocol):
    """A range of the IDs of one stream: an OffsetRange, or a part of it."""

    @property
    def key(self) -> str: ...
    @property
    def after(self) -> StreamId: ...
    @property
    def end(self) -> StreamId: ...


RangeT = TypeVar("RangeT", bound=IdRange)


class Offsets:
    """The streams of a query, over a connection to the leader and one for notifications. It caches only data that is
    recent or known to be current.

    All methods raise UnreachableError if no leader answers, and ReplyError if a key is not a stream.
    """

    def __init__(self, source: ReadOptions) -> None:
        self.source = source
        self.servers = LeaderConnection(source.access, f"{source.name}-driver")
        topic = source.subscription.topic
        self.topic = ReadTopic(self.servers, topic) if topic else None
        self._lasts: Ids = {}
        self._lasts_until = 0.0
        self.histories = HistoryPlanner(self.servers.ask, source.history_seconds)
        self._watch = NewEntryWatch(source.access, f"{source.name}-watch")
        self._keys: tuple[str, ...] = ()
        self._keys_until = 0.0

    def close(self) -> None:
        self.servers.close()
        self._watch.close()

    # -- what the server has ------------------------------------------------------------------------------------
    def keys(self) -> tuple[str, ...]:
        """Return the subscribed keys. For a pattern, the keys of streams that match now; they must be UTF-8."""
        if self.topic is not None:
            return self.topic.keys()
        subscription = self.source.subscription
        if not subscription.pattern:
            return subscription.keys
        if time.monotonic() >= self._keys_until:
            matches = re.compile(subscription.pattern).fullmatch
            names = [key.decode() for key in self._scan() if is_text(key)]
            self._keys = tuple(sorted(name for name in names if matches(name)))
            self._keys_until = time.monotonic() + KEYS_FOR
        return self._keys

    def _scan(self) -> set[bytes]:
        """Return the keys of all streams; in a cluster, those of all groups."""

        def once() -> set[bytes]:
            found: set[bytes] = set()
            for leader in self.servers.leaders():
                cursor = b"0"
                while True:
                    cursor, page = leader.ask("SCAN", cursor, "COUNT", SCAN_COUNT, "TYPE", "stream")
                    found.update(page)
                    if cursor == b"0":
                        break
            return found

        return self.servers.attempts(once)

    def lasts(self, fresh: bool = False) -> Ids:
        """Return the last ID of each stream, 0.0 if there is none: at most LASTS_FOR old, or current if ``fresh``.

        They can be older if the server would have notified us of new entries: see ``watch``.
        """
        if fresh or not self._still_true():
            keys = self.keys()
            replies = self.servers.ask(*[calls.tread(key, "0", 0, with_info=True) for key in keys])
            infos = [existing(key, reply).info for key, reply in zip(keys, replies, strict=True)]
            before, self._lasts = self._lasts, {key: info.last for key, info in zip(keys, infos, strict=True)}
            self._lasts_until = time.monotonic() + LASTS_FOR
            if self._lasts == before:  # only an idle query saves work by waiting
                self._watch.begin(self._lasts)
        return dict(self._lasts)

    def _still_true(self) -> bool:
        if time.monotonic() < self._lasts_until:
            return True
        return self._watch.quiet() and self.keys() == tuple(self._lasts)

    def infos(self, keys: Iterable[str]) -> dict[str, Info | None]:
        """Return TINFO of each key, or None if the key does not exist."""
        names = list(keys)
        replies = self.servers.ask(*map(calls.tinfo, names))
        return {key: existing(key, reply) for key, reply in zip(names, replies, strict=True)}

    # -- from options to IDs ------------------------------------------------------------------------------------
    def start(self) -> Ids:
        """Return the IDs after which to start, according to the options."""
        infos = self.infos(self.keys())
        if self.topic is None:
            self._report_missing([key for key, info in infos.items() if info is None])
        elif not infos:
            self._report_missing([self.topic.name])
        places = {key: self.source.starting.named(key) or EARLIEST for key in infos}
        self._check_times(infos, places)
        return self._looked_up(infos, places, self.source.starting, first=True)

    def _report_missing(self, keys: list[str]) -> None:
        """Raise NoStreamError for named streams that do not exist, with ``failOnMissing``; otherwise log them."""
        if not keys or self.source.subscription.pattern:
            return
        what = "topic" if self.topic is not None else "stream"
        text = f"{self.source.subscription.option} names what is no {what} here: {', '.join(map(repr, keys))}"
        if self.source.fail_on_missing:
            raise NoStreamError(f"{text} (failOnMissing=false reads that as empty)")
        log.warning("%s", text)

    def _check_times(self, infos: Mapping[str, Info | None], places: Mapping[str, Position]) -> None:
        """Raise NoOffsetError, with the strategy ``error``, for a time after the last entry of a stream."""
        for key, where in places.items():
            info = infos[key]
            if where.kind == "time" and info is not None and info.last < where.id and self.source.times_must_exist:
                raise NoOffsetError(
                    f"{self.source.starting.option} is {where.id.ms}, and stream {key!r} has no entry from that time "
                    f"on, its last ID is {info.last} (startingOffsetsByTimestampStrategy=latest begins with what comes)"
                )

    def narrowed(self, spans: list[OffsetRange], to: Narrowed) -> list[OffsetRange]:
        """Return the spans after the filters. Rule 1 holds."""
        spans = [span for span in spans if to.reads(span.key)]
        infos = self.infos([span.key for span in spans])
        bounds = {key: to.of(info) for key, info in infos.items() if info is not None}
        firsts = {key: Position("time", StreamId(limits.first)) for key, limits in bounds.items() if limits.first}
        ends = {
            key: Position("time", StreamId(limits.last + 1)) for key, limits in bounds.items() if limits.last < MS_MAX
        }
        begin = self._looked_up(infos, firsts, self.source.starting, first=True)
        stop = self._looked_up(infos, ends, self.source.ending, first=False)
        made = [
            OffsetRange(
                span.key, max(span.after, begin.get(span.key, ZERO)), min(span.end, stop.get(span.key, span.end))
            )
            for span in spans
        ]
        return [span for span in made if span.end > span.after]

    def firsts(self, spans: list[OffsetRange]) -> dict[str, Entry]:
        """Return the first entry of each span, without spans that are empty by now."""
        replies = self.servers.ask(*[calls.trange(span.key, f"({span.after}", span.end, 1) for span in spans])
        read = {span.key: existing(span.key, reply) for span, reply in zip(spans, replies, strict=True)}
        return {key: entries[0] for key, entries in read.items() if entries}

    def end(self, start: Ids) -> Ids:
        """Return the last IDs to read in a batch according to the options, without keys that have nothing to read."""
        infos = self.infos(start)
        places = {key: self.source.ending.named(key) or Position("latest") for key in infos}
        ends = self._looked_up(infos, places, self.source.ending, first=False)
        return {key: end for key, end in ends.items() if end > start[key]}

    def _looked_up(
        self, infos: Mapping[str, Info | None], places: Mapping[str, Position], option: Positions, first: bool
    ) -> Ids:
        """Convert each position to an ID (Rule 1): that to read after if ``first``, otherwise the last one to read."""
        bounded = [key for key, where in places.items() if where.kind in ("id", "time") and infos[key] is not None]
        replies = self.servers.ask(*[calls.trevrange(key, f"({places[key].id}", "-", 1) for key in bounded])
        newest = {key: existing(key, reply) for key, reply in zip(bounded, replies, strict=True)}
        ids: Ids = {}
        for key, where in places.items():
            info = infos[key]
            if info is None:
                ids[key] = ZERO
            elif where.kind == "latest":
                ids[key] = info.last
            elif where.kind == "earliest":
                ids[key] = info.evicted_to
            else:
                entries = newest[key]
                ids[key] = entries[0].id if entries else info.evicted_to
                if first and where.kind == "id":
                    ids[key] = self._exactly(key, where, ids[key], info, option)
        return ids

    def _exactly(self, key: str, where: Position, nearest: StreamId, info: Info, option: Positions) -> StreamId:
        """Return the ID to read after, for a start at an ID. ``nearest`` is the newest ID before it.

        Raises DataLossError, with ``failOnDataLoss``, if the stream never reached that ID.
        """
        wanted = where.id
        beyond = wanted > StreamId(info.last.ms, min(info.last.seq + 1, SEQ_MAX))
        if beyond and self.source.fail_on_loss:
            what = f"{option.option} names ID {where.text}, which the stream never reached"
            raise data_loss(self.source, key, before(wanted), info, what)
        return before(wanted) if wanted <= info.evicted_to else nearest

    def mark(self) -> dict[str, str]:
        """Return the part of an offset that identifies the topic, if there is one."""
        return self.topic.mark() if self.topic is not None else {}

    def check_topic(self, offset: Mapping[str, str], fresh: bool = False) -> None:
        """Raise TopicChangedError, with ``failOnDataLoss``, if the topic of this offset was deleted or replaced."""
        change = self.topic.change(offset, fresh) if self.topic is not None else None
        if change is None:
            return
        text = f"{change}; what the query has read is of the former one. Start with a new checkpoint"
        if self.source.fail_on_loss:
            raise TopicChangedError(f"{text}, or with failOnDataLoss=false, which goes on with what is there.")
        log.warning("%s to read it from its beginning", text)

    # -- what was lost ------------------------------------------------------------------------------------------
    def verify(self, starts: Ids) -> list[DataLossError]:
        """Return an error for each key of which not all entries after its ID can be read."""
        infos = self.infos(starts)
        errors = {key: lost(self.source, key, after, infos[key]) for key, after in starts.items()}
        asked = [
            key
            for key, after in starts.items()
            if errors[key] is None and (info := infos[key]) is not None and not info.may_lack(after)
        ]
        replies = self.servers.ask(*[calls.tcount(key, starts[key], starts[key]) for key in asked])
        for key, number in zip(asked, replies, strict=True):
            if not existing(key, number):  # Rule 1
                what = "it was deleted and filled again"
                errors[key] = data_loss(self.source, key, starts[key], infos[key], what)
        return [error for error in errors.values() if error is not None]

    # -- how much -----------------------------------------------------------------------------------------------
    def counts(self, spans: Sequence[IdRange]) -> list[int]:
        """Return the current number of entries in each span."""
        replies = self.servers.ask(*[calls.tcount(span.key, f"({span.after}", span.end) for span in spans])
        return [existing(span.key, reply) for span, reply in zip(spans, replies, strict=True)]

    def counted(self, pieces: Sequence[tuple[RangeT, int]]) -> list[tuple[RangeT, int]]:
        """Return the pieces with their numbers of entries. A negative number is not known yet."""
        numbers = iter(self.counts([span for span, number in pieces if number < 0]))
        return [(span, next(numbers) if number < 0 else number) for span, number in pieces]

    def limited(self, spans: list[OffsetRange], most: int) -> list[OffsetRange]:
        """Shorten the spans to ``most`` entries in total, in proportion to their entries.

        Each stream gets at least one entry. If there are more than ``most`` streams, those with the oldest offsets come
        first.
        """
        have = self.counts(spans)
        total = sum(have)
        if total <= most:
            return spans
        order = sorted((i for i, number in enumerate(have) if number), key=lambda i: spans[i].after)[:most]
        shares = dict.fromkeys(order, 1)
        spare, rest = most - len(order), sum(have[i] - 1 for i in order)
        for i in order:
            share = spare * (have[i] - 1) // rest if rest else 0
            shares[i] += share
        left = most - sum(shares.values())  # remainder of the rounding: fewer than there are streams
        for i in order:
            more = min(left, have[i] - shares[i])
            shares[i] += more
            left -= more
        asked = [(spans[i], shares[i], have[i]) for i in sorted(order)]
        replies = self.servers.ask(*[calls.tseek(span.key, span.after, share) for span, share, _ in asked])
        cut = []
        for (span, _, _), reply in zip(asked, replies, strict=True):
            end = existing(span.key, reply)
            if end is not None:
                cut.append(OffsetRange(span.key, span.after, min(end, span.end)))
        return cut

    def limited_bytes(self, spans: list[OffsetRange], most: int) -> list[OffsetRange]:
        """Shorten the spans to about ``most`` bytes in total, estimated from the first entries of each."""
        replies = self.servers.ask(*[calls.trange(span.key, f"({span.after}", span.end, SAMPLE) for span in spans])
        total = number = 0.0
        for span, have, reply in zip(spans, self.counts(spans), replies, strict=True):
            sample = existing(span.key, reply)
            total += have * sum(sum(map(len, entry.flat)) for entry in sample) / max(1, len(sample))
            number += have
        return spans if total <= most else self.limited(spans, max(1, int(number * most / total)))

    def split(
        self, spans: list[OffsetRange], least: int | None, most: int | None = None
    ) -> list[tuple[OffsetRange, int]]:
        """Divide the spans into at least ``least`` pieces, if there are that many entries; each with its number of
        entries.

        No piece has more than ``most`` entries. If ``most`` is None and ``least`` is None or reached, each span is a
        piece, and its entries are not counted (-1).
        """
        if most is None and (least is None or least <= len(spans)):
            return [(span, -1) for span in spans]
        have = self.counts(spans)
        total = sum(have)
        wanted = []
        for number in have:
            pieces_of = -(-(least or 1) * number // total) if total else 1  # rounded up: at least ``least`` in total
            if most is not None:
                pieces_of = max(pieces_of, -(-number // most))
            wanted.append(max(1, min(number, pieces_of)))
        borders = [
            (span, [number * i // pieces for i in range(1, pieces)])
            for span, number, pieces in zip(spans, have, wanted, strict=True)
        ]
        seeks = [calls.tseek(span.key, span.after, n) for span, places in borders for n in places]
        replies = iter(self.servers.ask(*seeks))
        pieces: list[tuple[OffsetRange, int]] = []
        for (span, places), number in zip(borders, have, strict=True):
            after, done = span.after, 0
            for n in places:
                end = existing(span.key, next(replies))
                if end is not None and after < end < span.end:
                    pieces.append((OffsetRange(span.key, after, end), n - done))
                    after, done = end, n
            pieces.append((OffsetRange(span.key, after, span.end), number - done))
        return pieces
