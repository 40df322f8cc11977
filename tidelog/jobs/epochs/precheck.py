"""The queries of a driver before an epoch and before its publication, in one round trip."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client import calls
from tidelog.client.entries import Info, StreamId
from tidelog.client.steps import checked, existing
from tidelog.jobs.topics import Ask, JobTopics, facts_now, read_now
from tidelog.topics.sending import TopicFullError
from tidelog.topics.settings import TopicSettings
from tidelog.transport.errors import ReplyError


@dataclass(frozen=True)
class Precheck:
    """The current state on the server."""

    epoch: int | None  # the last published one
    facts: Mapping[str, TopicSettings | None]  # by topic
    infos: Mapping[str, Info | None]  # by input stream
    lengths: Mapping[tuple[str, int], int]  # of outputs with a hard limit, by topic and partition
    missing: tuple[str, StreamId] | None = None  # stream and ID of an entry that was read and does not exist any more

    @property
    def lasts(self) -> dict[str, StreamId]:
        """The last ID of each stream."""
        return {stream: info.last for stream, info in self.infos.items() if info is not None}


def precheck(ask: Ask, fence: str, shape: JobTopics, read: Collection[tuple[str, StreamId]] | None = None) -> Precheck:
    """Query the server in one round trip.

    read: the last entry of each stream that tasks have read. If given, only the epoch, the settings of the topics and
    the existence of these entries are queried.
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
    infos = {stream: existing(stream, reply) for stream, reply in zip(streams, rest, strict=False)}
    lengths = dict(zip(limited, checked(rest[len(streams) :]), strict=True)) if read is None else {}
    return Precheck(head[0], read_now(names, head[1:]), infos, lengths, missing)


def _missing(read: list[tuple[str, StreamId]], replies: list[Any]) -> tuple[str, StreamId] | None:
    """Return the first of these entries that does not exist although it was neither evicted nor deleted."""
    for (stream, last), there, about in zip(read, replies[::2], replies[1::2], strict=True):
        info = existing(stream, about)
        if isinstance(there, ReplyError) and info is not None:
            raise there
        if info is None or (not there and not info.may_lack(last)):
            return stream, last
    return None


def full(seen: Precheck, shape: JobTopics) -> str:
    """Return why nothing can be written, if an output partition is at its hard limit; "" if there is room."""
    for (name, at), length in seen.lengths.items():
        limit = shape.outputs[name].retention.hard_limit
        if limit is not None and length >= limit:
            return str(TopicFullError(name, at, length, limit))
    return ""
