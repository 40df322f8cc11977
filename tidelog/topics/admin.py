"""Administration of topics: list, show, grow, alter, delete. Blocking; used by ``tidelog topics``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.client import calls, steps, strings
from tidelog.client.client import Client
from tidelog.client.entries import Entry, StreamId, StreamPolicy
from tidelog.client.steps import Steps, checked
from tidelog.codecs import CodecError, UndecodableError, codec_for
from tidelog.coordination import documents
from tidelog.topics import balancing
from tidelog.topics.balancing import PartitionPlace, SlotTransfer
from tidelog.topics.groupprogress import progress
from tidelog.topics.retention import enforce
from tidelog.topics.settings import MOST, PREFIX, Retention, TopicError, TopicSettings, key_of, read_settings
from tidelog.topics.typechanges import judged
from tidelog.transport.call import Call

PAGE: Final = 500  # streams per pipeline


@dataclass(frozen=True)
class PartitionState:
    """The current state of a partition."""

    key: str
    length: int  # entries
    first: StreamId | None
    last: StreamId | None  # the newest ID ever assigned; None: nothing was ever sent
    groups: int
    unfinished: int  # entries that the slowest group has not finished; 0 without groups
    slowest: bytes  # that group; empty without groups
    policy: StreamPolicy | None  # with which the server evicts


def names(client: Client) -> Iterator[str]:
    """Return the names of all topics, in arbitrary order."""
    for key in client.redis.scan_iter(match=f"{PREFIX}*", count=1000, _type="string"):
        yield (key.decode() if isinstance(key, bytes) else key)[len(PREFIX) :]


def settings_of(client: Client, name: str) -> TopicSettings:
    """Return the settings of a topic. Raises TopicError if there is none with this name."""
    return _read(client, name)[0]


def partitions(client: Client, name: str, settings: TopicSettings) -> Iterator[PartitionState]:
    """Return the state of each partition, in order."""
    for at in range(settings.partitions or 0):
        yield steps.run(client, _state(f"{name}:{at}"))


def places(client: Client, name: str, settings: TopicSettings) -> list[PartitionPlace]:
    """Return the place of each partition; none if the servers are not a cluster with a coordinator.

    Raises redis.ResponseError if the user lacks the permission for TCLUSTER MAP.
    """
    return steps.run(client, balancing.places(name, settings.partitions or 0))


def balance(client: Client, name: str) -> None:
    """Distribute the partitions of a topic over the groups of a cluster, as far as their slots are empty."""
    steps.run(client, balancing.balance(name, settings_of(client, name).partitions or 0))


def transfers(client: Client, name: str, settings: TopicSettings) -> list[SlotTransfer]:
    """Return the transfers that would distribute the partitions of a topic evenly over the groups."""
    return steps.run(client, balancing.transfers(name, settings.partitions or 0))


def lengths(name: str, settings: TopicSettings) -> list[Call[int]]:
    """Return the calls for the number of entries of each partition."""
    return [calls.tlen(f"{name}:{at}") for at in range(settings.partitions or 0)]


def alter(
    client: Client, name: str, retention: Retention | None = None, fields: Mapping[str, str] | None = None
) -> TopicSettings:  # fmt: skip
    """Replace the retention of a topic, and the types of some fields. Programs that declare others are then refused.

    The server enforces the retention from then on.

    fields: types by field, as in the settings, or a union, ``int|str``. The stored values must be readable as the
    new type, unless the newest entry lacks the field: it was then removed from the record type and can change to any
    type.

    Raises TopicError with the reason if a field can't be changed in this way; then nothing is changed. Also raises
    TopicError if the server refuses the policy of a partition, for example for a key of another type.
    """
    lacking: set[str] = set()
    before = Retention()
    if fields:
        lacking = set(fields) - (newest_fields(client, name, settings_of(client, name)) or set())

    def change(settings: TopicSettings) -> TopicSettings:
        nonlocal before
        made, before = dict(settings.fields), settings.retention
        for field, wanted in (fields or {}).items():
            made[field] = _changed(name, settings, field, wanted, field in lacking)
        return replace(settings, retention=retention or settings.retention, fields=made)

    settings = _swap(client, name, change)
    if retention is not None:
        only_tier = retention != before and replace(retention, tier_after=before.tier_after) == before
        steps.run(client, enforce(name, settings, not only_tier))
    return settings


def newest_fields(client: Client, name: str, settings: TopicSettings) -> set[str] | None:
    """Return the fields of the newest record of a topic, and of its next delayed records. None: there is no record."""
    keys = [f"{name}:{at}" for at in range(settings.partitions or 0)]
    found: tuple[StreamId, set[str]] | None = None
    for start in range(0, len(keys), PAGE):
        for key, entries in zip(keys[start:], client.together(*newest(keys[start : start + PAGE])), strict=False):
            for entry in entries:
                if found is None or entry.id > found[0]:
                    found = entry.id, _names(settings, key, entry)
    later = set[str]()
    for start in range(0, len(keys), PAGE):
        pages = client.together(*map(calls.tdelay_list, keys[start : start + PAGE]))
        for key, page in zip(keys[start:], pages, strict=False):
            for each in page.entries:
                later |= _names(settings, key, Entry(StreamId(0), each.flat))
    return found[1] | later if found is not None else later or None


def newest(keys: Sequence[str]) -> list[Call[list[Entry]]]:
    """Return the calls for the newest entry of each stream."""
    return [calls.trevrange(key, count=1) for key in keys]


def _names(settings: TopicSettings, key: str, entry: Entry) -> set[str]:
    if settings.codec == "plain":
        return {name.decode(errors="replace") for name, _ in entry.pairs}
    try:
        return set(codec_for(dict, settings.codec).decode(entry, key.encode()))
    except (CodecError, UndecodableError) as error:
        raise TopicError(f"{key}: the newest entry can't be read: {error}") from None


def _changed(name: str, settings: TopicSettings, field: str, wanted: str, removed: bool) -> str:
    there = settings.fields.get(field)
    if there is None:
        known = ", ".join(settings.fields) or "none"
        text = f"topic {name!r} has no field {field!r}; known fields: {known}"
        raise TopicError(f"{text}. A program that declares a new field adds it")
    kind, reason = judged(settings.codec, there, wanted, field == settings.partition_by, removed)
    if reason:
        raise TopicError(f"topic {name!r}, field {field!r}: {reason}")
    return kind


def grow(client: Client, name: str, count: int, force: bool = False) -> TopicSettings:
    """Increase the number of partitions to ``count``, a multiple of the current number.

    A key then belongs to its old partition or to a new one. Entries are not moved, so old entries of a key may be read
    after its new ones. Raises TopicError while a group has unfinished entries, unless ``force`` is set. In a cluster,
    the new partitions are distributed over the groups before any program can use them.
    """
    settings = settings_of(client, name)
    now = settings.partitions or 0
    if not now < count <= MOST or count % now:
        raise TopicError(f"topic {name!r} has {now} partitions: it can grow to a multiple of that, not to {count}")
    if not force:
        for state in partitions(client, name, settings):
            if state.unfinished:
                raise TopicError(
                    f"topic {name!r} is not idle: {state.unfinished:,} entries of {state.key} are not finished. Stop"
                    " the senders and let the processors finish first, or accept that keys lose their order (--force)"
                )
    steps.run(client, balancing.balance(name, count, fixed=now))
    grown = _swap(client, name, lambda known: replace(known, partitions=count), expected=settings)
    if grown.retention.limited or grown.retention.tier_after is not None:
        steps.run(client, enforce(name, grown, grown.retention.limited))
    return grown


def waiting(client: Client, name: str) -> int:
    """Return the number of delayed records of a topic (``delay``, ``at``)."""
    keys = [f"{name}:{at}" for at in range(settings_of(client, name).partitions or 0)]
    pages = [keys[start : start + PAGE] for start in range(0, len(keys), PAGE)]
    return sum(sum(client.together(*map(calls.tdelay_count, page))) for page in pages)


def delete(client: Client, name: str) -> int:
    """Delete a topic with its entries, groups and delayed records. Returns how many partitions existed."""
    settings, text = _read(client, name)
    removed = 0
    for at in range(settings.partitions or 0):
        removed += client.redis.delete(f"{name}:{at}")
    if not client.run(strings.delete_equal(key_of(name), text)):
        raise TopicError(f"topic {name!r} was changed by another program in the meantime: delete it again")
    return removed


# -- settings ------------------------------------------------------------------------------------------------
def _read(client: Client, name: str) -> tuple[TopicSettings, bytes]:
    text = client.run(strings.get(key_of(name)))
    return _settings(name, text), text or b""


def _settings(name: str, text: bytes | None) -> TopicSettings:
    if text is None:
        raise TopicError(f"there is no topic {name!r}")
    return read_settings(name, text)


def _swap(client: Client, name: str, change: Any, expected: TopicSettings | None = None) -> TopicSettings:
    def edit(text: bytes | None) -> tuple[bytes, TopicSettings]:
        settings = _settings(name, text)
        if expected is not None and settings != expected:
            raise TopicError(f"topic {name!r} was changed by another program in the meantime: check it again")
        changed: TopicSettings = change(settings)
        return changed.written(), changed

    return steps.run(client, documents.change(key_of(name), edit))


# -- one partition -------------------------------------------------------------------------------------------
def _state(key: str) -> Steps[PartitionState]:
    *replies, policy = yield [
        calls.tread(key, "0", 0, with_info=True), calls.tlen(key), calls.tgroup_list(key), calls.tcfg(key),
    ]  # fmt: skip
    span, length, groups = checked(replies)
    info = span.info
    last = info.last if info is not None and info.last != StreamId(0) else None
    ends = yield from progress(key, groups)
    slowest = min(ends, key=ends.__getitem__, default=b"")
    unfinished = 0
    if ends:
        (unfinished,) = checked((yield [calls.tcount(key, f"({ends[slowest]}")]))
    if isinstance(policy, Exception):  # there is no such key yet
        policy = None
    return PartitionState(
        key, length, info.first if info else None, last, len(groups), unfinished, slowest, policy
    )  # fmt: skip
