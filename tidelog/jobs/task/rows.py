"""``InputRows``: the rows of one input, and how they are divided into calls of the function.

Rule 1: The calls depend only on the rows, ``merge`` and ``max_rows``, or on ``Marker.calls``. A marker contains all of
        these, so a replay makes the same calls.
Rule 2: With ``merge="time"``, rows are ordered by ID over all inputs, and by input for equal IDs, also from batch to
        batch; see ``bounded``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.codecs import UndecodableError
from tidelog.jobs.declare import Merge
from tidelog.jobs.errors import JobError
from tidelog.topics import Topic

Numbers = npt.NDArray[np.uint64]


class CallRange(NamedTuple):
    """The rows of one call: their input, the first row, and the end (excluded)."""

    input: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class InputRows:
    """Rows of one input, in the order of their IDs. ``table`` has a column for each field, ``ids`` are strings."""

    topic: Topic[Any]
    table: pa.Table
    ids: pa.Array
    bad: dict[int, UndecodableError] = field(default_factory=dict)  # rows with invalid values

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, numbers: Collection[int]) -> InputRows:
        """Return the rows without those at these indexes."""
        if not numbers:
            return self
        gone = set(numbers)
        kept = [at for at in range(len(self)) if at not in gone]
        indexes = pa.array(kept, pa.int64())
        bad = {new: self.bad[old] for new, old in enumerate(kept) if old in self.bad}
        return InputRows(self.topic, self.table.take(indexes), self.ids.take(indexes), bad)

    def upto(self, number: int) -> InputRows:
        """Return the first ``number`` rows."""
        bad = {at: error for at, error in self.bad.items() if at < number}
        return InputRows(self.topic, self.table.slice(0, number), self.ids.slice(0, number), bad)

    @property
    def last(self) -> StreamId | None:
        """The ID of the last row."""
        return StreamId.parse(self.ids[-1].as_py()) if len(self) else None


def shares(counts: Sequence[int], most: int) -> list[int]:
    """Return how many rows of each input to read, ``most`` in total: equal shares, with unused parts redistributed."""
    result = [0] * len(counts)
    waiting = sorted((count, at) for at, count in enumerate(counts) if count)
    for number, (count, at) in enumerate(waiting):
        result[at] = min(count, -(-most // (len(waiting) - number)))
        most -= result[at]
    return result


def bounded(rows: Sequence[InputRows], more: Sequence[bool], now_ms: int) -> list[InputRows]:
    """Return the rows that no later entry can precede by ID; the others wait for the next batch.

    more: whether an input has entries that were not read. now_ms: the server's time before the inputs were inspected:
    entries that arrive later have IDs from that time on.
    """
    bound = StreamId(now_ms - 1, SEQ_MAX)
    for one, is_more in zip(rows, more, strict=True):
        if is_more and one.last is not None:
            bound = min(bound, one.last)
    return [one.upto(_number_upto(one.ids, bound)) for one in rows]


def split_calls(rows: Sequence[InputRows], merge: Merge, max_rows: int) -> list[CallRange]:
    """Divide these rows into calls. max_rows: 0 for no limit."""
    if merge == "inputs":
        ranges = [CallRange(at, 0, len(one)) for at, one in enumerate(rows) if len(one)]
    else:
        ranges = _merged(rows)
    step = max_rows or max((len(one) for one in rows), default=0)
    return [
        CallRange(at, first, min(first + step, stop))
        for at, start, stop in ranges
        for first in range(start, stop, step)
    ]  # fmt: skip


def recorded(rows: Sequence[InputRows], calls: Sequence[tuple[str, str]]) -> list[CallRange]:
    """Return a marker's calls. Raises JobError if they do not fit the rows."""
    inputs = {one.topic.name: at for at, one in enumerate(rows)}
    indexes = [{text: at for at, text in enumerate(one.ids.to_pylist())} for one in rows]
    begun = [0] * len(rows)
    made = []
    for topic, last in calls:
        at = inputs.get(topic)
        index = None if at is None else indexes[at].get(last)
        if at is None or index is None or index < begun[at]:
            raise JobError(f"a call of the function ended with entry {last} of topic {topic!r}, which does not exist")
        made.append(CallRange(at, begun[at], index + 1))
        begun[at] = index + 1
    for one, end in zip(rows, begun, strict=True):
        if end != len(one):
            raise JobError(f"{len(one) - end} entries of topic {one.topic.name!r} belong to no call of the function")
    return made


def id_numbers(ids: pa.Array) -> tuple[Numbers, Numbers]:
    """Return IDs as two columns of numbers with the same order."""
    if not len(ids):
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    flat = pc.split_pattern(ids, ".").flatten().cast(pa.uint64()).to_numpy().reshape(-1, 2)
    return flat[:, 0], flat[:, 1]


def _number_upto(ids: pa.Array, bound: StreamId) -> int:
    """Return how many of these sorted IDs do not exceed the bound."""
    ms, seq = id_numbers(ids)
    low = int(np.searchsorted(ms, np.uint64(bound.ms), "left"))
    high = int(np.searchsorted(ms, np.uint64(bound.ms), "right"))
    return low + int(np.searchsorted(seq[low:high], np.uint64(bound.seq), "right"))


def _merged(rows: Sequence[InputRows]) -> list[CallRange]:
    """Return ranges of consecutive rows of one input, in the order of all IDs."""
    numbers = [id_numbers(one.ids) for one in rows]
    which = np.concatenate([np.full(len(one), at) for at, one in enumerate(rows)] or [np.zeros(0)]).astype(np.int64)
    if not len(which):
        return []
    ms, seq = (np.concatenate(column) for column in zip(*numbers, strict=True))
    order = which[np.lexsort((which, seq, ms))]
    borders = [0, *(np.flatnonzero(np.diff(order)) + 1).tolist(), len(order)]
    begun = [0] * len(rows)
    ranges = []
    for start, stop in pairwise(borders):
        at = int(order[start])
        ranges.append(CallRange(at, begun[at], begun[at] + stop - start))
        begun[at] += stop - start
    return ranges
