"""Sinks that fail: a task after it has staged, a driver in the middle of a commit. Sources that read in one way only:
compiled, or by hiredis.

Spark's workers import this module, so its settings are environment variables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tidelog.arrow.pages import SWITCH, native
from tidelog.spark.options import for_sink, for_source
from tidelog.spark.optionvalues import BATCH, STREAM
from tidelog.spark.sink import Messages, Staged, TidelogStreamWriter
from tidelog.spark.source import TidelogDataSource, TidelogReader

PAUSES = "TIDELOG_TEST_PAUSES"  # a directory: a file in it, named like the stream, says that its writer pauses
PAUSED = 1  # the batch in which writers pause
LONGEST = 300.0  # seconds that a pause lasts if the process is not killed


class FailingWriter(TidelogStreamWriter):
    """The first attempt at partition 0 fails after it has staged its rows."""

    def write(self, iterator: Iterator[Any]) -> Staged:
        message = super().write(iterator)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
            raise RuntimeError("as asked for")
        return message


class PausingWriter(TidelogStreamWriter):
    """Pauses in one batch: before it publishes it, or after that, as the name of the stream or the topic says."""

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        when = self.sink.topic.name if self.sink.topic is not None else str(self.sink.key)
        if when == "after":
            super().commit(messages, batchId)
        if batchId == PAUSED:
            Path(os.environ[PAUSES], when).touch()
            time.sleep(LONGEST)
        if when == "before":
            super().commit(messages, batchId)


class FailingSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog_failing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802
        return FailingWriter(for_sink(self.given, STREAM), schema)


class PausingSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog_pausing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802
        return PausingWriter(for_sink(self.given, STREAM), schema)


class OneWayReader(TidelogReader):
    """Reads compiled, or by hiredis; the task fails if that is not possible."""

    compiled = True

    def read(self, partition: InputPartition) -> Iterator[Any]:
        os.environ[SWITCH] = "1" if self.compiled else "0"
        if native() != self.compiled:
            raise AssertionError(f"native() is {native()}")
        try:
            yield from super().read(partition)
        finally:
            del os.environ[SWITCH]


class HiredisReader(OneWayReader):
    compiled = False


class CompiledSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog_compiled"

    def reader(self, schema: StructType) -> TidelogReader:
        return OneWayReader(for_source(self.given, BATCH), schema)


class HiredisSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog_hiredis"

    def reader(self, schema: StructType) -> TidelogReader:
        return HiredisReader(for_source(self.given, BATCH), schema)
