"""Assigns the rows of a batch to the partitions of a topic, by the hash of tidelog.topics.partition, one column at a
time.

Rule 1: the rows of a partition keep their order.
Rule 2: rows without keys are distributed round-robin. They are not moved: each partition gets a slice of the batch.
Rule 3: the bytes of a key are the same as in Python: UTF-8 for text, decimal text for a whole number, the bytes of a
        binary value, and text with dashes in lower case for a UUID.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final
from uuid import UUID
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arrow.pages import native
from tidelog.client.publish import StagedRows
from tidelog.codecs import codec_for
from tidelog.codecs.packed import FIELD, Packed
from tidelog.spark.commands import Column, Ints, RowError, as_text, cut, fields_of
from tidelog.spark.finite import check_finite
from tidelog.topics.sending import PLAIN

try:
    from tidelog.arrow._rows import partitions as compiled
except ImportError:  # as in pages.py, or built before it had this function
    compiled = None  # type: ignore[assignment]

#: Kinds of fields whose columns are text.
TEXTS: Final[Mapping[str, type[Any]]] = {"uuid": UUID, "time": time, "timedelta": timedelta, "decimal": Decimal}
WITH_DASHES: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class TopicEntries:
    """Builds StagedRows from rows, for the partitions of a topic.

    columns: those that are fields. key: the column that determines the partition, None for round-robin; ``uuids``: it
    contains UUIDs. codec: the codec of the topic; with ``plain``, each column is a field. kinds: the kinds of the
    fields in the settings of the topic.
    """

    def __init__(
        self, name: str, partitions: int, columns: list[str], key: str | None, uuids: bool, codec: str,
        kinds: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.streams = [f"{name}:{at}".encode() for at in range(partitions)]
        self.columns = columns
        self.key = key
        self.uuids = uuids
        self.codec = codec
        kinds = kinds or {}
        others = [column for column in columns if not (uuids and column == key)]
        self._texts = {column: TEXTS[kinds[column]] for column in others if kinds.get(column) in TEXTS}
        self._turn: int | None = None  # the next partition; None: any

    def parts(self, batch: pa.RecordBatch) -> Iterator[StagedRows]:
        """Yield the rows of a batch by partition, in order. Raises RowError for a row without a key or values."""
        if not batch.num_rows:
            return
        for name, kind in self._texts.items():
            self._check_texts(name, kind, batch.column(name))
        if self.key is None:
            counts = self._shares(batch.num_rows)
        else:
            at = partitions_of(self._keys(batch.column(self.key)), len(self.streams))
            counts = list(enumerate(np.bincount(at, minlength=len(self.streams)).tolist()))
            batch = batch.take(pa.array(np.argsort(at, kind="stable")))
        yield from cut(self._fields(batch), [(self.streams[at], number) for at, number in counts if number])

    def _check_texts(self, name: str, kind: type[Any], column: pa.Array) -> None:
        """Raise RowError if a text is not a valid value of its type in the topic."""
        if not pa.types.is_string(column.type):
            return
        for text in pc.unique(column).to_pylist():
            try:
                _ = text is None or msgspec.convert(text, kind, strict=False)
            except msgspec.ValidationError:
                what = kind.__name__.lower()
                raise RowError(f"topic {self.name!r}: {name} of a row is {text!r:.80}, which is no {what}") from None

    def _fields(self, batch: pa.RecordBatch) -> list[Column]:
        if self.codec == PLAIN:
            return fields_of(batch, self.columns)
        check_finite(batch, self.columns, self.codec)
        values = (batch.column(name).to_pylist(maps_as_pydicts="lossy") for name in self.columns)
        rows = [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)]
        written = self._packer.written  # the types of the columns, which can differ from the types in dict
        return [(FIELD.encode(), pa.array(map(written, rows), pa.binary()))]

    @cached_property
    def _packer(self) -> Packed[dict[str, Any]]:
        """Built in the task that uses it, because it cannot be pickled."""
        made = codec_for(dict, self.codec)
        assert isinstance(made, Packed)  # noqa: S101 - all but plain are
        return made

    def _keys(self, column: pa.Array) -> pa.Array:
        """Return the bytes of keys."""
        if column.null_count:
            raise RowError(f"topic {self.name!r}: a row's {self.key} is null, and its partition depends on that")
        keys = as_text(column)
        if self.uuids:
            text = pc.utf8_lower(keys.cast(pa.string()))
            matches = pc.match_substring_regex(text, WITH_DASHES)
            if not pc.all(matches).as_py():
                wrong = text.filter(pc.invert(matches))[0].as_py()
                raise RowError(f"topic {self.name!r}: {self.key} is {wrong!r}, which is no UUID with dashes")
            keys = text.cast(pa.binary())
        return keys

    def _shares(self, rows: int) -> list[tuple[int, int]]:
        """Return partitions and numbers of rows, as even as possible. A task starts with a random partition."""
        count = len(self.streams)
        begin = random.randrange(count) if self._turn is None else self._turn
        self._turn = (begin + rows) % count
        return [((begin + n) % count, rows // count + (n < rows % count)) for n in range(min(rows, count))]


def partitions_of(keys: pa.Array, partitions: int) -> Ints:
    """Return the partition of each key of a binary column without nulls."""
    numbers = _hashed(keys, partitions) if compiled is not None and native() else by_zlib(keys, partitions)
    return numbers.astype(np.uint16) if partitions <= 1 << 16 else numbers  # sorting 16 bits is several times faster


def by_zlib(keys: pa.Array, partitions: int) -> Ints:
    """Return the partition of each key, as ``partitions_of`` does, with one call per key."""
    hashes = np.fromiter(map(crc32, keys.to_numpy(zero_copy_only=False)), np.uint32, len(keys))
    numbers: Ints = hashes % np.uint32(partitions)
    return numbers


def _hashed(keys: pa.Array, partitions: int) -> Ints:
    assert compiled is not None  # noqa: S101
    _, offsets, data = keys.buffers()
    return np.frombuffer(compiled(offsets, data or b"", keys.offset, len(keys), partitions), np.uint32)
