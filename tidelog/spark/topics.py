"""The topic of a write: its settings on the server, compared with options and columns before rows are written.

Rule 1: the settings are read when Spark creates the writer of a batch, and again before the batch is published. Rows
        were assigned to partitions in between. If the topic has changed, nothing is published.
Rule 2: the sink evicts nothing from a topic, because the server enforces the retention. ``hard_limit`` is checked
        before a batch is published, so one batch can exceed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.arrow.columns import PARTITION
from tidelog.arrow.values import kind_of
from tidelog.client import calls
from tidelog.client.steps import Steps, checked, drive_over
from tidelog.spark.commands import KEY, is_fields
from tidelog.spark.options import TopicOptions, WriteOptions
from tidelog.spark.optionvalues import OptionError
from tidelog.spark.partitioning import TopicEntries
from tidelog.topics.reconcile import compare, known
from tidelog.topics.retention import enforce_changed
from tidelog.topics.sending import PLAIN, TopicFullError
from tidelog.topics.settings import FUNCTION, TopicError, TopicSettings
from tidelog.transport.leader import LeaderConnection

Ask = Callable[..., list[Any]]  # Servers.ask, or that of a Publisher
NO_FIELDS: Final = frozenset({KEY, PARTITION})  # columns of the source that the sink does not write
MAP: Final = "map"
#: Kinds of columns that a kind of field accepts. Python would not write or read values of other kinds in this form.
TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "float": ("float", "int"), "time": ("str",), "timedelta": ("str",), "uuid": ("str",), "enum": ("str", "int"),
    "literal": ("str", "int"),
}  # fmt: skip


class TargetTopicChangedError(Exception):
    """The topic has changed since the batch was planned."""


@dataclass(frozen=True)
class TargetTopic:
    """The topic of a batch, as it was when the batch was planned."""

    name: str
    facts: TopicSettings

    def own(self, streams: Mapping[bytes, int]) -> dict[bytes, int]:
        """Select the numbers of rows of the topic's partitions."""
        name = self.name.encode()
        return {key: rows for key, rows in streams.items() if key.rpartition(b":")[0] == name}

    def unchanged(self, ask: Ask) -> None:
        """Raise TargetTopicChangedError if rows would now belong to other partitions (Rule 1)."""
        now = drive_over(ask, known(self.name))
        if now is None or (now.id, now.partitions) != (self.facts.id, self.facts.partitions):
            what = "was deleted" if now is None else f"has {now.partitions} partitions"
            if now is not None and now.id != self.facts.id:
                what = "was deleted and made anew"
            raise TargetTopicChangedError(
                f"topic {self.name!r} {what} while the batch was written for its {self.facts.partitions} partitions: "
                "nothing was published. Run it again; a streaming query: start it again"
            )

    def room(self, ask: Ask, streams: Iterable[bytes]) -> None:
        """Raise TopicFullError if one of these partitions has reached the hard limit of the topic."""
        limit = self.facts.retention.hard_limit
        if limit is not None:
            keys = sorted(streams)
            for key, length in zip(keys, checked(ask(*map(calls.tlen, keys))), strict=True):
                if length >= limit:
                    raise TopicFullError(self.name, number_of(key.decode()), length, limit)


def number_of(key: str) -> int:
    """Return the partition whose stream has this key."""
    return int(key.rpartition(":")[2])


def target_of(sink: WriteOptions, topic: TopicOptions, schema: StructType) -> tuple[TargetTopic, TopicEntries]:
    """Return the topic, created if necessary, and the builder of its entries from rows with this schema.

    Raises OptionError, TopicError, and TopicMismatchError for unsuitable options and columns. Nothing is written then.
    """
    kinds = _kinds(schema)
    with closing(LeaderConnection(sink.access, "spark-tidelog-sink-driver")) as servers:
        facts = drive_over(servers.ask, _agree(topic, kinds))
    key = _key_column(topic, facts, kinds)
    uuids = key is not None and facts.fields.get(key) == "uuid"
    columns = [name for name in schema.fieldNames() if name not in NO_FIELDS]
    entries = TopicEntries(topic.name, facts.partitions or 1, columns, key, uuids, facts.codec, facts.fields)
    return TargetTopic(topic.name, facts), entries


def _agree(topic: TopicOptions, kinds: Mapping[str, str]) -> Steps[TopicSettings]:
    wanted: TopicSettings | None = None
    if (yield from known(topic.name)) is None and topic.partitions is not None:
        by = FUNCTION if topic.partition_by in NO_FIELDS else topic.partition_by
        wanted = TopicSettings(topic.partitions, by, topic.codec or PLAIN, _fields(kinds)).complete()
        _check(topic, wanted, kinds)

    def agreed(_: str, there: TopicSettings) -> TopicSettings:
        _check(topic, there, kinds)
        fits = {name: there.fields[name] for name, kind in kinds.items() if _fits(there.fields.get(name), kind)}
        by = there.partition_by if topic.partition_by is None or _is_made(there) else topic.partition_by
        ours = TopicSettings(topic.partitions, by, topic.codec or there.codec, {**_fields(kinds), **fits})
        return ours.agreed(topic.name, there)

    facts = yield from compare(topic.name, agreed, wanted)
    if facts is None:
        raise TopicError(
            f"there is no topic {topic.name!r}: it is made where the option partitions says how many it has, or by a "
            "program that uses tidelog.topics"
        )
    yield from enforce_changed(topic.name, facts, None)
    return facts


def _check(topic: TopicOptions, facts: TopicSettings, kinds: Mapping[str, str]) -> None:
    """Raise OptionError for columns that the codec cannot write, or that cannot be the key."""
    fields = [name for name in kinds if name not in NO_FIELDS]
    if not fields:
        raise OptionError(f"topic {topic.name!r}: there is no column to write")
    for name in fields:
        if not kinds[name] or (facts.codec == PLAIN and kinds[name] == "json"):
            raise OptionError(
                f"column {name} has a type that topic {topic.name!r} with the codec {facts.codec} can't hold: "
                "cast it, use to_json, or make a topic with codec=json"
            )
    key = _key_column(topic, facts, kinds)
    if key is not None and kinds[key] not in ("str", "int", "bytes"):
        raise OptionError(
            f"column {key} is {kinds[key]}, and the partition of a row depends on it: it must be a string, a whole "
            "number or binary"
        )


def _is_made(facts: TopicSettings) -> bool:
    """Return whether keys come from a function or have another name in entries. The option then names a column."""
    by = facts.partition_by
    return by == FUNCTION or (by is not None and bool(facts.fields) and by not in facts.fields)


def _key_column(topic: TopicOptions, facts: TopicSettings, kinds: Mapping[str, str]) -> str | None:
    if facts.partition_by is None:
        return None
    column = topic.partition_by if _is_made(facts) else facts.partition_by
    if column is None:
        raise OptionError(
            f"topic {topic.name!r} is partitioned by {facts.partition_by}, which is no field: partitionBy must name "
            f"the column that has these keys ({KEY} is a column that is not written)"
        )
    if column not in kinds:
        raise OptionError(f"there is no column {column}, by which topic {topic.name!r} is partitioned")
    return column


# -- types ---------------------------------------------------------------------------------------------------
def _fields(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the columns with types named as in the settings of a topic."""
    return {name: kind for name, kind in kinds.items() if name not in NO_FIELDS and kind != MAP}


def _fits(there: str | None, kind: str) -> bool:
    if there is None:
        return False
    return there == "json" or kind in TAKES.get(there, (there,))


def _kinds(schema: StructType) -> dict[str, str]:
    """Return the kind of a column as in codecs/shapes.py; MAP for a column of fields; "" if no codec can write it."""
    return {field.name: _kind(field.name, field.type) for field in to_arrow_schema(schema, timezone="UTC")}


def _kind(name: str, kind: pa.DataType) -> str:
    if is_fields(name, kind):
        return MAP
    return "" if pa.types.is_null(kind) else kind_of(kind)
