"""A sink that pauses before one step of a commit over several groups. Spark's workers import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql.types import StructType

from tests.tidelog.spark.faulty import LONGEST, PAUSED, PAUSES
from tidelog.client.dividedcommit import DividedCommit
from tidelog.client.steps import Steps
from tidelog.spark import sink
from tidelog.spark.options import for_sink
from tidelog.spark.optionvalues import STREAM
from tidelog.spark.sink import Messages, TidelogStreamWriter
from tidelog.spark.source import TidelogDataSource


class SteppedWriter(TidelogStreamWriter):
    """Pauses before the step that the name of the topic has, until the process is killed."""

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        assert self.sink.topic is not None
        name = self.sink.topic.name
        last = int(name.removeprefix("step"))

        class Stepped(DividedCommit):
            def commit(self, epoch: int, check: str, stages: Mapping[str, Sequence[str]]) -> Steps[bool]:
                steps = super().commit(epoch, check, stages)
                wanted = next(steps)
                for _ in range(last):
                    replies = yield wanted
                    wanted = steps.send(replies)
                Path(os.environ[PAUSES], name).touch()
                time.sleep(LONGEST)
                raise AssertionError("the process was not killed")

        if batchId == PAUSED:
            sink.DividedCommit = Stepped  # type: ignore[attr-defined]
        super().commit(messages, batchId)


class SteppedSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog_stepped"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802
        return SteppedWriter(for_sink(self.given, STREAM), schema)
