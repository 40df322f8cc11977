"""Dead letters: events that a processor gave up, kept with what went wrong, until they are replayed or purged.

A letter is one entry of partition 0 of a topic for dead letters. Its fields, in this order, then those of the event's
entry as they came:

    dlq:topic  dlq:partition  dlq:id   where the event was: its topic, its partition, its ID there
    dlq:key                            its partition key's bytes; empty: none, or the entry was no record
    dlq:processor                      who gave it up, as app.processor
    dlq:error  dlq:message  dlq:traceback
    dlq:attempts                       how often it was tried
    dlq:worker
    dlq:time                           ms since 1970

A flow reads streams that are no partitions of a topic. Of their entries ``dlq:topic`` is the stream and
``dlq:partition`` is -1: a replay appends them to it. An empty topic is that of an event that came from elsewhere.

Rule 1: the eleven are told from the event's own fields by their place, so an event's field may begin with ``dlq:``.
Rule 2: a letter is open while the group ``dlq`` has not finished it: either it is after the group's offset, or it is
        pending there. Nothing else needs to be remembered about it.
Rule 3: replaying is one transaction: the entry is appended to its topic, the letter is finished. What watches over it
        is the counter ``dlq:<stream>``, that every replay and purge increments: so of two at a time, one begins again,
        and letters that arrive meanwhile disturb nobody.
Rule 4: a dead letter names the origin of its event, and every user who can append dead letters can forge it. So a
        replay appends only to the topic that the topic for dead letters belongs to: T for ``T.dead``, and otherwise the
        topics and streams in ``letters_of`` of its facts, which the processors write before their first letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.operating.errortexts import text_of, traceback_of
from tidelog.topics import reconcile
from tidelog.topics.partition import Key, canonical, partition_of
from tidelog.topics.retention import after, finished
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings
from tidelog.transport.call import Call

GROUP: Final = "dlq"
FIELDS: Final = tuple(
    f"dlq:{name}".encode()
    for name in (
        "topic", "partition", "id", "key", "processor", "error", "message", "traceback", "attempts", "worker", "time",
    )
)  # fmt: skip
MESSAGE: Final = 4096  # characters of an error's message that are kept: the first
TRACEBACK: Final = 16384  # characters of a traceback that are kept: the last
PAGE: Final = 100  # letters in one transaction, and in one round trip
FOREVER: Final = 1 << 61  # ms: letters are never due
NO_PARTITION: Final = -1  # of an entry of a stream that is no partition
DEAD: Final = ".dead"  # appended to a topic's name: the topic for its dead letters, unless another one is named
HOMES: Final = 1000  # topics and streams that one topic for dead letters belongs to, at most

_DECLARED: Final = TopicSettings(None, None, "plain", {name.decode(): "str" for name in FIELDS})


class NotADeadLetterError(ValueError):
    """An entry of a topic for dead letters that is none. The text names it."""


@dataclass(frozen=True)
class DeadLetterRecord:
    """A dead letter, as it was read."""

    id: StreamId  # its own, in the topic for dead letters
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
    flat: tuple[bytes, ...]  # the event's fields and values as they came

    @property
    def place(self) -> str:
        """The stream that the event was in; empty: it was in none."""
        return self.topic if self.partition == NO_PARTITION else f"{self.topic}:{self.partition}"

    @property
    def entry(self) -> Entry:
        """The event's entry, with the ID that it had."""
        return Entry(self.event_id, self.flat)


def stream_of(name: str) -> str:
    """The stream that letters of a topic for dead letters are in."""
    return f"{name}:0"


def home(topic: str, partition: int = 0) -> str:
    """What letters of such events belong to, as ``Facts.letters_of`` has it. ``partition``: as of a letter."""
    return f"stream {topic}" if partition == NO_PARTITION else f"topic {topic}"


# -- writing -------------------------------------------------------------------------------------------------
def fields_of(
    topic: str, partition: int, entry: Entry, key: Key | None, processor: str, error: BaseException, attempts: int,
    worker: str, time: int,
) -> list[tuple[bytes, bytes]]:  # fmt: skip
    """The fields of a letter, for TAPPEND. ``processor``: as app.processor; ``time``: ms since 1970."""
    values: tuple[str | bytes | int, ...] = (
        topic, partition, str(entry.id), b"" if key is None else canonical(key), processor, _type_name(error),
        text_of(error)[:MESSAGE], traceback_of(error)[-TRACEBACK:], attempts, worker, time,
    )  # fmt: skip
    ours = [value if isinstance(value, bytes) else str(value).encode("utf-8", "replace") for value in values]
    return [*zip(FIELDS, ours, strict=True), *entry.pairs]


def append(name: str, fields: Sequence[tuple[bytes, bytes]]) -> Call[StreamId]:
    """The call that writes a letter to this topic."""
    return calls.tappend(stream_of(name), fields)


def ready(name: str, *homes: str) -> Steps[TopicSettings]:
    """Make the topic for dead letters, or see that it is one. Raises TopicMismatchError if it is another one.

    ``homes``: what it belongs to from now on (``home``), besides what it belongs to already. ``T.dead`` belongs to T
    anyway. Beyond HOMES nothing is added: such letters can be written, and replayed with a permission only.
    """
    wanted = _belonging(name, replace(_DECLARED.complete(), partitions=1), homes)

    def agreed(name: str, there: TopicSettings) -> TopicSettings:
        return _belonging(name, _DECLARED.agreed(name, there), homes)

    return (yield from reconcile.compare(name, agreed, wanted)) or wanted


def _belonging(name: str, facts: TopicSettings, homes: Iterable[str]) -> TopicSettings:
    known = {*facts.letters_of, *_natural(name)}
    new = [each for each in dict.fromkeys(homes) if each not in known]
    if not new or len(facts.letters_of) + len(new) > HOMES:
        return facts
    return replace(facts, letters_of=(*facts.letters_of, *new))


def _natural(name: str) -> tuple[str, ...]:
    """What a topic for dead letters belongs to by its name."""
    return (home(name.removesuffix(DEAD)),) if name.endswith(DEAD) and name != DEAD else ()


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- reading -------------------------------------------------------------------------------------------------
def read(entry: Entry) -> DeadLetterRecord:
    """The letter that an entry is. NotALetterError if it is none."""
    flat, ours = entry.flat, 2 * len(FIELDS)
    if flat[:ours:2] != FIELDS or len(flat) == ours:
        raise NotADeadLetterError(f"entry {entry.id} is no dead letter: its fields are not those that workers write")
    values = [value.decode("utf-8", "replace") for value in flat[1:ours:2]]
    topic, partition, event_id, _, processor, error, message, trace, attempts, worker, time = values
    try:
        return DeadLetterRecord(
            entry.id, topic, int(partition), StreamId.parse(event_id), flat[7], processor, error, message, trace,
            int(attempts), worker, int(time), flat[ours:],
        )  # fmt: skip
    except ValueError as wrong:
        raise NotADeadLetterError(f"entry {entry.id} is no dead letter: {wrong}") from None


def is_for_letters(facts: TopicSettings) -> bool:
    """Whether this is a topic for dead letters."""
    return all(name in facts.fields for name in _DECLARED.fields)


def count(name: str) -> Steps[int]:
    """How many letters are open."""
    key = stream_of(name)
    offset = yield from _offset(key)
    if offset is None:
        (number,) = checked((yield [calls.tlen(key)]))
        return int(number)
    new, pending = checked((yield [calls.tcount(key, f"({offset}"), calls.tpending(key, GROUP)]))
    return int(new + pending.count)


def page(name: str, start: StreamId | None = None, size: int = PAGE) -> Steps[tuple[list[Entry], StreamId | None]]:
    """Up to ``size`` entries of open letters after the ID ``start``, oldest first, and where the next page starts.

    None: there is no next one. Nothing is changed. A page may be empty, where letters were evicted.
    """
    key = stream_of(name)
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


def one(name: str, id: StreamId) -> Steps[Entry | None]:  # noqa: A002 - its name everywhere else
    """The entry of an open letter; None if there is none, or it is not open any more."""
    key = stream_of(name)
    offset = yield from _offset(key)
    (entries,) = checked((yield [calls.trange(key, id, id)]))
    if entries and offset is not None and id <= offset:
        (pending,) = checked((yield [calls.tpending_range(key, GROUP, id, id, 1)]))
        entries = entries if pending else []
    return entries[0] if entries else None


def _offset(key: str) -> Steps[StreamId | None]:
    """Where the group is; None while there is no group, so all letters are open."""
    (groups,) = checked((yield [calls.tgroup_list(key)]))
    for group in groups:
        if group.name == GROUP.encode():
            return StreamId(*group.offset)
    return None


def _entries(key: str, ids: Sequence[StreamId]) -> Steps[dict[StreamId, Entry]]:
    """The entries with these IDs. One that was evicted is left out."""
    found = checked((yield [calls.trange(key, at, at) for at in ids]))
    return {entries[0].id: entries[0] for entries in found if entries}


# -- replaying and purging -----------------------------------------------------------------------------------
Wanted = Callable[[DeadLetterRecord | None, StreamId], bool]


@dataclass(frozen=True)
class DeadLetterResult:
    """What a replay or a purge did."""

    letters: int  # replayed, or purged
    refused: tuple[str, ...] = ()  # why others were left: they are no letters, or their topic is gone


def everything(letter: DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002, ARG001 - the form of Wanted
    """Wants each letter."""
    return True


def replay(name: str, wanted: Wanted = everything, allowed: Iterable[str] = ()) -> Steps[DeadLetterResult]:
    """Append the events of open letters to their topics again, each once, as new entries; the letters are done.

    An event goes to the partition that its key has today. All processors of its topic get it; so an event that several
    of them gave up is appended once, where its letters are replayed together. ``wanted`` is asked
    about each letter that there is now. A letter of a topic or stream that ``name`` does not belong to is refused
    (rule 4), unless it is in ``allowed``, as ``home`` writes it. To be driven on one connection (``run_alone``).
    """
    (text,) = checked((yield [strings.get(key_of(name))]))
    known = () if text is None else read_settings(name, text).letters_of
    homes = frozenset((*known, *_natural(name), *allowed))

    def appended(letter: DeadLetterRecord | None, id: StreamId, facts: dict[str, TopicSettings | None]) -> Call[Any]:  # noqa: A002
        if letter is not None and letter.topic and home(letter.topic, letter.partition) not in homes:
            target = home(letter.topic, letter.partition)
            raise TopicError(
                f"letter {id}: {name!r} has no letters of the {target}: whoever may append to it may have forged this"
                f" one. If it is to go there, allow it: tidelog dlq replay --allow {letter.topic!r}"
            )
        return _appended(letter, id, facts)

    return (yield from _through(name, wanted, appended))


def purge(name: str, wanted: Wanted = everything) -> Steps[DeadLetterResult]:
    """Finish open letters without replaying them. ``wanted`` gets None for an entry that is no letter.

    To be driven on one connection (``run_alone``).
    """
    return (yield from _through(name, wanted, _nothing))


Effect = Callable[[DeadLetterRecord | None, StreamId, dict[str, TopicSettings | None]], Call[Any] | None]


def _through(name: str, wanted: Wanted, effect: Effect) -> Steps[DeadLetterResult]:
    """Go through all open letters, page by page; each page is one transaction."""
    key = stream_of(name)
    yield from _take_in(key)
    total, refused, start = 0, [], "-"
    sent: set[tuple[str, int, StreamId]] = set()  # events: of two letters of one event, one sends it
    while True:
        yield [Call(("WATCH", f"dlq:{key}"), bool)]
        (pending,) = checked((yield [calls.tpending_range(key, GROUP, start, "+", PAGE)]))
        if not pending:
            break
        ids = [message.id for message in pending]
        found = yield from _entries(key, ids)
        letters = {at: _read_or_none(found[at]) for at in ids if at in found}
        facts = yield from _facts(
            {letter.topic for letter in letters.values() if letter is not None and letter.partition != NO_PARTITION}
        )
        chosen = [at for at in letters if wanted(letters[at], at)]
        effects: list[Call[Any]] = []
        ended = [at for at in ids if at not in found]  # evicted: nothing is left of them
        problems = []
        fresh: set[tuple[str, int, StreamId]] = set()
        for at in chosen:
            try:
                made = effect(letters[at], at, facts)
            except (NotADeadLetterError, TopicError) as error:
                problems.append(str(error))
                continue
            event = _event(letters[at])
            if made is not None and event not in sent and event not in fresh:
                fresh.add(event)
                effects.append(made)
            ended.append(at)
        if ended and not (yield from _transaction(key, effects, ended)):
            continue  # somebody else was at it: look at this page again
        sent |= fresh
        total += len(chosen) - len(problems)
        refused += problems
        start = f"({ids[-1]}"
    yield [Call(("UNWATCH",), bool)]
    yield from _evict(key)
    return DeadLetterResult(total, tuple(refused))


def _event(letter: DeadLetterRecord | None) -> tuple[str, int, StreamId]:
    """Which event it is. Only letters have effects."""
    return ("", 0, StreamId(0)) if letter is None else (letter.topic, letter.partition, letter.event_id)


def _take_in(key: str) -> Steps[None]:
    """Make all letters pending, so that each can be finished by itself."""
    while True:
        (batch,) = checked((yield [calls.tread(key, "0", 1000, group=GROUP, retry=FOREVER)]))
        if not batch:
            return


def _transaction(key: str, effects: Sequence[Call[Any]], ids: Sequence[StreamId]) -> Steps[bool]:
    """Effects and the end of these letters, in one step. False: somebody else was at it, and nothing has happened."""
    checked(
        (yield [calls.tlen(str(stream)) for stream in {call.args[1] for call in effects}])
    )  # raises for another type
    todo = [strings.increment(f"dlq:{key}"), *effects, calls.tack(key, GROUP, *ids)]
    queued = [Call(call.args, lambda reply: reply) for call in todo]
    replies = yield [Call(("MULTI",), bool), *queued, Call(("EXEC",), lambda reply: reply)]
    results = checked(replies)[-1]
    if results is None:
        return False
    checked(results)
    return True


def _facts(topics: Iterable[str]) -> Steps[dict[str, TopicSettings | None]]:
    ordered = sorted(topics)
    texts = checked((yield [strings.get(key_of(topic)) for topic in ordered]))
    return {
        topic: None if text is None else read_settings(topic, text) for topic, text in zip(ordered, texts, strict=True)
    }


def _appended(letter: DeadLetterRecord | None, id: StreamId, known: dict[str, TopicSettings | None]) -> Call[Any]:  # noqa: A002
    if letter is None:
        raise NotADeadLetterError(f"entry {id} is no dead letter: it can't be replayed, only purged")
    if letter.partition == NO_PARTITION:
        if not letter.topic:
            raise TopicError(f"letter {id}: its event came from no stream: it can't be replayed, only purged")
        return Call(("TAPPEND", letter.topic, *letter.flat), lambda reply: reply)
    facts = known[letter.topic]
    if facts is None or not facts.partitions:
        raise TopicError(f"letter {id}: there is no topic {letter.topic!r} any more")
    at = partition_of(letter.key, facts.partitions) if letter.key else letter.partition % facts.partitions
    return Call(("TAPPEND", f"{letter.topic}:{at}", *letter.flat), lambda reply: reply)


def _nothing(letter: DeadLetterRecord | None, id: StreamId, known: dict[str, TopicSettings | None]) -> None:  # noqa: A002, ARG001
    return None


def _read_or_none(entry: Entry) -> DeadLetterRecord | None:
    try:
        return read(entry)
    except NotADeadLetterError:
        return None


def _evict(key: str) -> Steps[None]:
    """Evict the letters that this group and all others have finished, as far as nothing open is before them."""
    (groups,) = checked((yield [calls.tgroup_list(key)]))
    safe = yield from finished(key, groups)
    if safe is not None and safe > StreamId(0):
        checked((yield [calls.ttrim(key, before=after(safe))]))
