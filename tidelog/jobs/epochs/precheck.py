"""What a driver asks the server before an epoch, all at once, and what it evicts after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client import calls
from tidelog.client.entries import Info, StreamId
from tidelog.client.steps import checked
from tidelog.jobs.replaylog.origin import info_of
from tidelog.jobs.topics import Ask, JobTopics, facts_now, read_now
from tidelog.topics.sending import TopicFullError, evictions
from tidelog.topics.settings import TopicSettings
from tidelog.transport.errors import ReplyError


@dataclass(frozen=True)
class Precheck:
    """What is there now."""

    epoch: int | None  # the last one that was published
    facts: Mapping[str, TopicSettings | None]  # by topic
    infos: Mapping[str, Info | None]  # by stream that is read
    lengths: Mapping[tuple[str, int], int]  # of outputs with a hard limit: by topic and partition
    missing: tuple[str, StreamId] | None = None  # stream and ID of an entry that was read, and that is not there

    @property
    def lasts(self) -> dict[str, StreamId]:
        """By stream: the last ID."""
        return {stream: info.last for stream, info in self.infos.items() if info is not None}


def precheck(ask: Ask, fence: str, shape: JobTopics, read: Collection[tuple[str, StreamId]] | None = None) -> Precheck:
    """One round trip. ``read``: the entries that tasks have read, the last of each stream; then only the epoch and the
    facts are asked besides, and whether these entries are there.
    """
    names = list(dict.fromkeys([*shape.inputs, *shape.outputs]))
    streams = [f"{topic}:{at}" for topic, at in shape.streams()] if read is None else []
    limited = [
        (name, at)
        for name, facts in shape.outputs.items() if facts.retention.hard_limit is not None
        for at in range(facts.partitions or 1)
    ] if read is None else []  # fmt: skip
    replies = ask(
        calls.tfence(fence), *facts_now(names), *map(calls.tinfo, streams),
        *[calls.tlen(f"{name}:{at}") for name, at in limited],
        *[call for stream, last in read or () for call in (calls.tcount(stream, last, last), calls.tinfo(stream))],
    )  # fmt: skip
    head, rest = checked(replies[: 1 + len(names)]), replies[1 + len(names) :]
    missing = _missing(list(read), rest) if read is not None else None
    infos = {stream: info_of(reply) for stream, reply in zip(streams, rest, strict=False)}
    lengths = dict(zip(limited, checked(rest[len(streams) :]), strict=True)) if read is None else {}
    return Precheck(head[0], read_now(names, head[1:]), infos, lengths, missing)


def _missing(read: list[tuple[str, StreamId]], replies: list[Any]) -> tuple[str, StreamId] | None:
    """The first of these entries that is not there though it was neither evicted nor deleted."""
    for (stream, last), there, about in zip(read, replies[::2], replies[1::2], strict=True):
        info = info_of(about)
        if isinstance(there, ReplyError) and info is not None:
            raise there
        if info is None or (not there and not info.may_lack(last)):
            return stream, last
    return None


def full(seen: Precheck, shape: JobTopics) -> str:
    """Why nothing can be put out: an output partition has as many entries as its hard limit. "" if there is room."""
    for (name, at), length in seen.lengths.items():
        limit = shape.outputs[name].retention.hard_limit
        if limit is not None and length >= limit:
            return str(TopicFullError(name, at, length, limit))
    return ""


def evict(ask: Ask, shape: JobTopics) -> None:
    """What ``overflow="drop"`` gives up of the outputs."""
    made = [
        call
        for name, facts in shape.outputs.items() if facts.retention.drops
        for at in range(facts.partitions or 1)
        for call in evictions(facts.retention, f"{name}:{at}")
    ]  # fmt: skip
    checked(ask(*made))
