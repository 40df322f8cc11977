"""Dead letters: events whose processing failed for good, stored with the reason until they are replayed or purged.

A dead letter is one entry of partition 0 of a dead-letter queue, which is a topic. It has these fields, in this order,
followed by the unchanged fields of the event's entry:

    dlq:topic  dlq:partition  dlq:id   the origin of the event: its topic, its partition, its ID there
    dlq:key                            the bytes of its partition key; empty: none, or the entry was not a record
    dlq:processor                      the processor that failed, as app.processor
    dlq:error  dlq:message  dlq:traceback
    dlq:attempts                       the number of attempts
    dlq:worker
    dlq:time                           ms since 1970

A flow can read streams that are not partitions of a topic. For their entries, ``dlq:topic`` is the stream and
``dlq:partition`` is -1; a replay appends them to that stream. The topic is empty if the event did not come from a
stream.

The server writes another form if a group has a dead-letter stream ([23] in docs/semantics.md): the fields of the entry,
followed by the five fields of GIVEN_UP. ``read`` accepts both forms. Such a stream is not a topic: operations get its
key as ``stream``, and never evict its entries, because other programs may read it.

Rule 1: the eleven fields are identified by their positions, so a field of an event may begin with ``dlq:``. The same
        applies to the five fields of the server.
Rule 2: a dead letter is open while the group ``dlq`` has not finished it: it is either after the group's offset or
        pending. No other state is stored for it.
Rule 3: a replay is one transaction: the entry is appended to its topic, and the dead letter is finished. The
        transaction watches the counter of ``counter_of``, which every replay and purge increments. Of two concurrent
        replays, one starts again; new dead letters do not interfere. If the partition of the event is on another group
        of a cluster, the entry is appended first, with an ID (IDMP) by which the server recognizes a repetition for
        ``stream-idmp-duration``, and then the dead letter is finished.
Rule 4: a dead letter names the origin of its event, and every user who can append dead letters can forge it. A replay
        therefore appends only to topics that the queue belongs to: T for ``T.dead``, and otherwise the topics and
        streams in ``letters_of`` of its settings, which the processors write before their first dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import redis

from tidelog.client import calls, strings
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked, transaction
from tidelog.operating.errortexts import text_of, traceback_of
from tidelog.topics import reconcile
from tidelog.topics.groupprogress import after, finished, unfinished
from tidelog.topics.groupreader import group_offset
from tidelog.topics.partition import Key, canonical, partition_of
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings
from tidelog.transport.call import Call
from tidelog.transport.errors import CrossGroupError, ReplyError
from tidelog.transport.slots import hash_tag

GROUP: Final = "dlq"
FIELDS: Final = tuple(
    f"dlq:{name}".encode()
    for name in (
        "topic", "partition", "id", "key", "processor", "error", "message", "traceback", "attempts", "worker", "time",
    )
)  # fmt: skip
GIVEN_UP: Final = (b"__stream", b"__group", b"__id", b"__deliveries", b"__reason")  # that the server appends
MESSAGE: Final = 4096  # maximum characters of an error's message: the first ones are stored
TRACEBACK: Final = 16384  # maximum characters of a traceback: the last ones are stored
PAGE: Final = 100  # dead letters in one transaction, and in one round trip; not more than a producer's names, see once
FOREVER: Final = 1 << 61  # ms: dead letters are never due
NO_PARTITION: Final = -1  # the partition of an entry of a stream that is not a partition
DEAD: Final = ".dead"  # appended to a topic's name: the default name of its dead-letter queue
HOMES: Final = 1000  # maximum number of topics and streams that a dead-letter queue belongs to

_DECLARED: Final = TopicSettings(None, None, "plain", {name.decode(): "str" for name in FIELDS})


class NotADeadLetterError(ValueError):
    """An entry of a dead-letter queue is not a dead letter. The text names it."""


@dataclass(frozen=True)
class DeadLetterRecord:
    """A dead letter."""

    id: StreamId  # in the dead-letter queue
    topic: str  # of the event, as are the next three
    partition: int
    event_id: StreamId
    key: bytes  # empty: none
    processor: str  # app.processor
    error: str  # the name of its type
    message: str
    traceback: str
    attempts: int
    worker: str
    time: int  # ms since 1970
    flat: tuple[bytes, ...]  # the unchanged fields and values of the event

    @property
    def stream(self) -> str:
        """The stream of the event; empty: it did not come from a stream."""
        return self.topic if self.partition == NO_PARTITION else f"{self.topic}:{self.partition}"

    @property
    def entry(self) -> Entry:
        """The entry of the event, with its original ID."""
        return Entry(self.event_id, self.flat)


def stream_of(name: str) -> str:
    """Return the stream of a dead-letter queue."""
    return f"{name}:0"


def home(topic: str, partition: int = 0) -> str:
    """Return the item of ``letters_of`` for events of a topic or stream. ``partition``: as in a dead letter."""
    return f"stream {topic}" if partition == NO_PARTITION else f"topic {topic}"


# -- writing -------------------------------------------------------------------------------------------------
def fields_of(
    topic: str, partition: int, entry: Entry, key: Key | None, processor: str, error: BaseException, attempts: int,
    worker: str, time: int,
) -> list[tuple[bytes, bytes]]:  # fmt: skip
    """Return the fields of a dead letter. ``processor``: as app.processor; ``time``: ms since 1970."""
    values: tuple[str | bytes | int, ...] = (
        topic, partition, str(entry.id), b"" if key is None else canonical(key), processor, _type_name(error),
        text_of(error)[:MESSAGE], traceback_of(error)[-TRACEBACK:], attempts, worker, time,
    )  # fmt: skip
    ours = [value if isinstance(value, bytes) else str(value).encode("utf-8", "replace") for value in values]
    return [*zip(FIELDS, ours, strict=True), *entry.pairs]


def append(name: str, fields: Sequence[tuple[bytes, bytes]]) -> Call[StreamId]:
    """Return the call that appends a dead letter to a queue."""
    return calls.tappend(stream_of(name), fields)


def ready(name: str, *homes: str) -> Steps[TopicSettings]:
    """Create a dead-letter queue unless it exists. Raises TopicMismatchError if the topic has another purpose.

    ``homes``: the topics and streams (``home``) to add to those that the queue belongs to. ``T.dead`` always belongs to
    T. Beyond HOMES, none is added: their dead letters are written, but replayed only if ``allowed``.
    """
    wanted = _belonging(name, replace(_DECLARED.complete(), partitions=1), homes)

    def agreed(name: str, there: TopicSettings) -> TopicSettings:
        return _belonging(name, _DECLARED.agreed(name, there), homes)

    return (yield from reconcile.compare(name, agreed, wanted)) or wanted


def _belonging(name: str, settings: TopicSettings, homes: Iterable[str]) -> TopicSettings:
    known = {*settings.letters_of, *_natural(name)}
    new = [each for each in dict.fromkeys(homes) if each not in known]
    if not new or len(settings.letters_of) + len(new) > HOMES:
        return settings
    return replace(settings, letters_of=(*settings.letters_of, *new))


def _natural(name: str) -> tuple[str, ...]:
    """Return what a dead-letter queue belongs to because of its name."""
    return (home(name.removesuffix(DEAD)),) if name.endswith(DEAD) and name != DEAD else ()


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- reading -------------------------------------------------------------------------------------------------
def read(entry: Entry) -> DeadLetterRecord:
    """Parse an entry. Raises NotADeadLetterError if it is not a dead letter."""
    flat, ours = entry.flat, 2 * len(FIELDS)
    if flat[-2 * len(GIVEN_UP) :: 2] == GIVEN_UP and len(flat) > 2 * len(GIVEN_UP):
        return _read_given_up(entry)
    if flat[:ours:2] != FIELDS or len(flat) == ours:
        raise NotADeadLetterError(f"entry {entry.id} is not a dead letter: it does not have the fields of one")
    values = [value.decode("utf-8", "replace") for value in flat[1:ours:2]]
    topic, partition, event_id, _, processor, error, message, trace, attempts, worker, time = values
    try:
        return DeadLetterRecord(
            entry.id, topic, int(partition), StreamId.parse(event_id), flat[7], processor, error, message, trace,
            int(attempts), worker, int(time), flat[ours:],
        )  # fmt: skip
    except ValueError as wrong:
        raise NotADeadLetterError(f"entry {entry.id} is not a dead letter: {wrong}") from None


def _read_given_up(entry: Entry) -> DeadLetterRecord:
    """Parse a message that a group has given up."""
    flat, own = entry.flat, 2 * len(GIVEN_UP)
    stream, group, event_id, deliveries, reason = (each.decode("utf-8", "replace") for each in flat[1 - own :: 2])
    try:
        return DeadLetterRecord(
            entry.id, stream, NO_PARTITION, StreamId.parse(event_id), b"", group, reason,
            f"delivered {int(deliveries):,} times without an acknowledgement", "", int(deliveries), "", entry.id.ms,
            flat[:-own],
        )  # fmt: skip
    except ValueError as wrong:
        raise NotADeadLetterError(f"entry {entry.id} is not a dead letter: {wrong}") from None


def is_dead_letter_queue(settings: TopicSettings) -> bool:
    """Return whether the topic is a dead-letter queue."""
    return all(name in settings.fields for name in _DECLARED.fields)


def count(name: str, stream: str = "") -> Steps[int]:
    """Return the number of open dead letters. ``stream``: of the queue, if it is not a topic."""
    return unfinished(stream or stream_of(name), GROUP)


def open_counts(names: Iterable[str]) -> Steps[dict[str, int | None]]:
    """Return the number of open dead letters by topic: 0 if the topic does not exist, None if it can't be read."""
    found: dict[str, int | None] = {}
    for name in sorted(set(names)):
        try:
            (settings,) = checked((yield [strings.get(key_of(name))]))
            found[name] = (yield from count(name)) if settings is not None else 0
        except (redis.ResponseError, ReplyError):  # such as no permission, or another value under its key
            found[name] = None
    return found


def page(
    name: str, start: StreamId | None = None, size: int = PAGE, stream: str = ""
) -> Steps[tuple[list[Entry], StreamId | None]]:
    """Return up to ``size`` open entries after the ID ``start``, oldest first, and the start of the next page.

    The start is None after the last page. A page may be empty if entries were evicted. Nothing is changed.
    ``stream``: as for ``count``.
    """
    key = stream or stream_of(name)
    offset = yield from _offset(key)
    bound = "-" if start is None else f"({start}"
    if offset is not None and (start is None or start < offset):
        (pending,) = checked((yield [calls.tpending_range(key, GROUP, bound, str(offset), size)]))
        if pending:
            found = yield from _entries(key, [message.id for message in pending])
            return list(found.values()), pending[-1].id
        bound = f"({offset}"
    (new,) = checked((yield [calls.trange(key, bound, "+", size)]))
    return new, new[-1].id if new else None


def one(name: str, id: StreamId, stream: str = "") -> Steps[Entry | None]:  # noqa: A002 - its name everywhere else
    """Return the entry of an open dead letter; None if it does not exist or is no longer open.

    ``stream``: as for ``count``.
    """
    key = stream or stream_of(name)
    offset = yield from _offset(key)
    (entries,) = checked((yield [calls.trange(key, id, id)]))
    if entries and offset is not None and id <= offset:
        (pending,) = checked((yield [calls.tpending_range(key, GROUP, id, id, 1)]))
        entries = entries if pending else []
    return entries[0] if entries else None


def _offset(key: str) -> Steps[StreamId | None]:
    """Return the offset of the group; None if there is no group, so all dead letters are open."""
    (offset,) = checked((yield [group_offset(key, GROUP)]))
    found: StreamId | None = offset
    return found


def _entries(key: str, ids: Sequence[StreamId]) -> Steps[dict[StreamId, Entry]]:
    """Return the entries with these IDs, without those that were evicted."""
    found = checked((yield [calls.trange(key, at, at) for at in ids]))
    return {entries[0].id: entries[0] for entries in found if entries}


# -- replaying and purging -----------------------------------------------------------------------------------
Wanted = Callable[[DeadLetterRecord | None, StreamId], bool]


@dataclass(frozen=True)
class DeadLetterResult:
    """The result of a replay or a purge."""

    letters: int  # dead letters that were replayed or purged
    refused: tuple[str, ...] = ()  # reasons for others: not a dead letter, or its topic was deleted


def everything(letter: DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002, ARG001 - the form of Wanted
    """Select every dead letter."""
    return True


def replay(
    name: str, wanted: Wanted = everything, allowed: Iterable[str] = (), stream: str = ""
) -> Steps[DeadLetterResult]:
    """Append the events of open dead letters to their topics, once each, as new entries, and finish the dead letters.

    An event is appended to the current partition of its key. All processors of its topic get it, so if several of them
    failed, the event is appended once if their dead letters are replayed together. ``wanted`` selects among the current
    dead letters. A dead letter of a topic or stream that ``name`` does not belong to is refused (Rule 4), unless
    ``allowed`` contains it, in the form of ``home``. ``stream``: as for ``count``. Run it on one connection
    (``run_alone``).
    """
    homes = yield from _homes(name, allowed)

    def appended(letter: DeadLetterRecord | None, id: StreamId, settings: dict[str, TopicSettings | None]) -> Call[Any]:  # noqa: A002
        _check_home(name, letter, id, homes)
        return _appended(letter, id, settings)

    return (yield from _through(stream or stream_of(name), wanted, appended, evict=not stream))


Edit = Callable[[DeadLetterRecord, TopicSettings | None], DeadLetterRecord]


def replay_edited(
    name: str, id: StreamId, edit: Edit, allowed: Iterable[str] = (), stream: str = ""  # noqa: A002
) -> Steps[tuple[str, StreamId] | None]:  # fmt: skip
    """Replay one open dead letter with another event, which ``edit`` returns. It may be called more than once.

    Returns the stream and the ID of the new entry, or None if the dead letter is not open: it was replayed, purged, or
    never existed. ``edit`` gets the settings of the topic; None: the event is from a stream that is not a partition.
    Raises TopicError and NotADeadLetterError if ``replay`` would refuse the dead letter. ``allowed``, ``stream``: as
    for ``replay``. Run it on one connection (``run_alone``).
    """
    key = stream or stream_of(name)
    homes = yield from _homes(name, allowed)
    yield from _take_in(key)
    while True:
        yield [Call(("WATCH", counter_of(key)), bool)]
        entry = yield from one(name, id, stream)
        if entry is None:
            yield [Call(("UNWATCH",), bool)]
            return None
        letter = read(entry)
        _check_home(name, letter, id, homes)
        settings = yield from _settings({letter.topic} if letter.partition != NO_PARTITION else ())
        call = _appended(edit(letter, settings.get(letter.topic)), id, settings)
        replies = yield from _transaction(key, {id: call}, [id])
        if replies is not None:
            if not stream:
                yield from _evict(key)
            return str(call.args[1]), StreamId.parse(replies[1])


def _homes(name: str, allowed: Iterable[str]) -> Steps[frozenset[str]]:
    """Return the topics and streams to which the dead letters of a queue can be replayed."""
    settings = yield from reconcile.known(name)
    return frozenset((*(settings.letters_of if settings is not None else ()), *_natural(name), *allowed))


def _check_home(name: str, letter: DeadLetterRecord | None, id: StreamId, homes: Collection[str]) -> None:  # noqa: A002
    """Raise TopicError for a dead letter of a topic or stream that the queue does not belong to (Rule 4)."""
    if letter is not None and letter.topic and home(letter.topic, letter.partition) not in homes:
        target = home(letter.topic, letter.partition)
        raise TopicError(
            f"dead letter {id}: {name!r} does not belong to the {target}, so this dead letter may be forged."
            f" To replay it anyway: tidelog dlq replay --allow {letter.topic!r}"
        )


def purge(name: str, wanted: Wanted = everything) -> Steps[DeadLetterResult]:
    """Finish open dead letters without replaying them. ``wanted`` gets None for an entry that is not a dead letter.

    Run it on one connection (``run_alone``).
    """
    return (yield from _through(stream_of(name), wanted, lambda *_: None))


Effect = Callable[[DeadLetterRecord | None, StreamId, dict[str, TopicSettings | None]], Call[Any] | None]


def _through(key: str, wanted: Wanted, effect: Effect, *, evict: bool = True) -> Steps[DeadLetterResult]:
    """Process all open dead letters of a stream in pages. Each page is one transaction."""
    yield from _take_in(key)
    total, refused, start = 0, [], "-"
    sent: set[tuple[str, int, StreamId]] = set()  # events: an event with two dead letters is sent once
    while True:
        yield [Call(("WATCH", counter_of(key)), bool)]
        (pending,) = checked((yield [calls.tpending_range(key, GROUP, start, "+", PAGE)]))
        if not pending:
            break
        ids = [message.id for message in pending]
        found = yield from _entries(key, ids)
        letters = {at: _read_or_none(found[at]) for at in ids if at in found}
        settings = yield from _settings(
            {letter.topic for letter in letters.values() if letter is not None and letter.partition != NO_PARTITION}
        )
        chosen = [at for at in letters if wanted(letters[at], at)]
        effects: dict[StreamId, Call[Any]] = {}
        ended = [at for at in ids if at not in found]  # evicted
        problems = []
        fresh: set[tuple[str, int, StreamId]] = set()
        for at in chosen:
            try:
                made = effect(letters[at], at, settings)
            except (NotADeadLetterError, TopicError) as error:
                problems.append(str(error))
                continue
            event = _event(letters[at])
            if made is not None and event not in sent and event not in fresh:
                fresh.add(event)
                effects[at] = made
            ended.append(at)
        if ended and (yield from _transaction(key, effects, ended)) is None:
            continue  # another replay or purge was faster: read this page again
        sent |= fresh
        total += len(chosen) - len(problems)
        refused += problems
        start = f"({ids[-1]}"
    yield [Call(("UNWATCH",), bool)]
    if evict:
        yield from _evict(key)
    return DeadLetterResult(total, tuple(refused))


def _event(letter: DeadLetterRecord | None) -> tuple[str, int, StreamId]:
    """Return the identity of the event. Only dead letters have effects."""
    return ("", 0, StreamId(0)) if letter is None else (letter.topic, letter.partition, letter.event_id)


def _take_in(key: str) -> Steps[None]:
    """Make all dead letters pending, so that each can be finished separately."""
    while True:
        (batch,) = checked((yield [calls.tread(key, "0", 1000, group=GROUP, retry=FOREVER)]))
        if not batch:
            return


def _transaction(key: str, effects: Mapping[StreamId, Call[Any]], ids: Sequence[StreamId]) -> Steps[list[Any] | None]:
    """Execute effects and finish these dead letters in one step. Returns the replies: of the counter, then of effects.

    ``effects``: TAPPENDs, by the ID of the dead letter. Returns None if another replay or purge was faster. If the keys
    are on several groups of a cluster, the effects are executed before (Rule 3).
    """
    streams = {str(call.args[1]) for call in effects.values()}
    checked((yield [calls.tlen(stream) for stream in streams]))  # raises for another type
    counted, acked = strings.increment(counter_of(key)), calls.tack(key, GROUP, *ids)
    try:
        results = yield from transaction([counted, *effects.values(), acked])
    except CrossGroupError:
        made = checked((yield [once(call, f"dlq:{key}", str(at)) for at, call in effects.items()]))
        results = yield from transaction([counted, acked])
        results = None if results is None else [results[0], *(str(each).encode() for each in made), *results[1:]]
    return None if results is None else checked(results)


def once(append: Call[Any], producer: str, name: str) -> Call[StreamId]:
    """Return a TAPPEND as a call that the server executes once, also if it is sent again with this producer and name.

    It remembers the last 100 names of each producer, for ``stream-idmp-duration``.
    """
    _, stream, *words = append.args
    return Call(("XADD", stream, "IDMP", producer, name, "*", *words), StreamId.parse)


def counter_of(key: str) -> str:
    """Return the key of the counter of replays and purges, which is in the slot of the queue's stream."""
    tag = hash_tag(key)
    if tag in key:  # the key has it
        return f"dlq:{key}"
    return f"dlq:{tag}:{key}" if "{" in key else f"dlq:{key}:{tag}"


def _settings(topics: Iterable[str]) -> Steps[dict[str, TopicSettings | None]]:
    ordered = sorted(topics)
    texts = checked((yield [strings.get(key_of(topic)) for topic in ordered]))
    return {
        topic: None if text is None else read_settings(topic, text) for topic, text in zip(ordered, texts, strict=True)
    }


def _appended(letter: DeadLetterRecord | None, id: StreamId, known: dict[str, TopicSettings | None]) -> Call[Any]:  # noqa: A002
    if letter is None:
        raise NotADeadLetterError(f"entry {id} is not a dead letter: it can only be purged")
    if letter.partition == NO_PARTITION:
        if not letter.topic:
            raise TopicError(f"dead letter {id}: its event did not come from a stream: it can only be purged")
        return Call(("TAPPEND", letter.topic, *letter.flat), lambda reply: reply)
    settings = known[letter.topic]
    if settings is None or not settings.partitions:
        raise TopicError(f"dead letter {id}: the topic {letter.topic!r} was deleted")
    at = partition_of(letter.key, settings.partitions) if letter.key else letter.partition % settings.partitions
    return Call(("TAPPEND", f"{letter.topic}:{at}", *letter.flat), lambda reply: reply)


def _read_or_none(entry: Entry) -> DeadLetterRecord | None:
    try:
        return read(entry)
    except NotADeadLetterError:
        return None


def _evict(key: str) -> Steps[None]:
    """Evict the dead letters that all groups have finished, up to the first open one."""
    (groups,) = checked((yield [calls.tgroup_list(key)]))
    safe = yield from finished(key, groups)
    if safe is not None and safe > StreamId(0):
        checked((yield [calls.ttrim(key, before=after(safe))]))
