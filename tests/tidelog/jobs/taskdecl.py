"""The records and topics of the tests of tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from tidelog.jobs import MicroBatch
from tidelog.topics import Topic


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    count: int


Seen = list[tuple[str, list[int]]]


def clicks(name: str = "clicks", partitions: int = 1, **options: Any) -> Topic[Click]:
    return Topic(name, Click, partition_by="user", partitions=partitions, **options)


def totals(partitions: int = 1, **options: Any) -> Topic[Total]:
    return Topic("totals", Total, partition_by="user", partitions=partitions, **options)


def noted(seen: Seen, batch: MicroBatch) -> None:
    assert batch.topic is not None
    seen.append((batch.topic.name, batch.table["n"].to_pylist()))
