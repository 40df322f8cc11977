"""``MicroBatch``: the entries of one input that a batch job's function gets in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tidelog.topics import Topic


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Entries of one topic, in the order of their IDs.

    topic: the input; None for a job without inputs. table: a column for each field of the topic's records, null if an
    entry lacks it. ids: the entries' IDs, as strings ``ms.seq``, in the order of the rows.
    now_ms: the time of the largest ID that the partition has read so far, ms since 1970; identical when the batch is
    replayed. Functions must use this time instead of a clock.
    """

    topic: Topic[Any] | None
    table: pa.Table
    partition: int
    epoch: int
    now_ms: int
    ids: pa.Array = field(repr=False)

    @property
    def now(self) -> datetime:
        """``now_ms`` as a time in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def __len__(self) -> int:
        return int(self.table.num_rows)
