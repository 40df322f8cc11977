"""Spark's own ways to count by key: from ``key string`` to ``key string, count long``, a row for each key and batch.

In a module of their own because Spark's Python workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OUT: Final = "key string, count long"


class Counter(StatefulProcessor):
    """For transformWithStateInPandas: a frame of a key's rows at a time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's names
        before = self.count.get()
        count = sum(map(len, rows)) + (before[0] if before is not None else 0)
        self.count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})

    def close(self) -> None: ...


class RowCounter(Counter):
    """For transformWithState: rows of a key, one after the other, without pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's names
        before = self.count.get()
        count = sum(1 for _ in rows) + (before[0] if before is not None else 0)
        self.count.update((count,))
        yield Row(key=key[0], count=count)


def with_group_state(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """For applyInPandasWithState, which came before transformWithState."""
    count = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "count": [count]})


def count(frame: DataFrame, way: str) -> DataFrame:
    """Running counts by one of the ways in ``WAYS``."""
    grouped = frame.groupBy("key")
    if way == "pandas":
        return grouped.transformWithStateInPandas(Counter(), OUT, "Append", "None")
    if way == "rows":
        return grouped.transformWithState(RowCounter(), OUT, "Append", "None")
    if way == "group":
        return grouped.applyInPandasWithState(
            with_group_state, OUT, "count long", "append", GroupStateTimeout.NoTimeout
        )  # fmt: skip
    return grouped.agg(F.count("*").alias("count"))


WAYS: Final = {
    "pandas": "transformWithStateInPandas",
    "rows": "transformWithState (rows)",
    "group": "applyInPandasWithState",
    "built-in": "groupBy().count(), in the JVM",
}
