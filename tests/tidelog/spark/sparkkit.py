"""A Spark session that starts in seconds, for tests and for the drivers that they kill."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[3]

#: No UI, loopback only, only the C1 compiler, and three attempts at a task.
SETTINGS = {
    "spark.master": "local[2,3]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.log.level": "OFF",
}


QUERY_SECONDS = 200  # that a query may take on a busy machine


def ended(query: StreamingQuery) -> None:
    """Wait until a query has ended. Raises its error; AssertionError if it does not end."""
    assert query.awaitTermination(QUERY_SECONDS), f"the query has not ended: {query.status}, {query.lastProgress}"


def require_spark() -> None:
    """Skip the test, with the reason, where Spark can't run."""
    import pytest  # here: drivers run without it

    pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")
    if shutil.which("java") is None:
        pytest.skip("no Java here, which Spark needs (Debian: apt-get install openjdk-17-jre-headless)")


def worker_program() -> str:
    """The program that starts Spark's Python workers: without pyspark's zip on the path, which costs half a second."""
    path = Path(tempfile.mkdtemp(prefix="tidelog-spark-")) / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    path.chmod(0o700)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return str(path)


@contextmanager
def surroundings() -> Iterator[None]:
    """The environment in which a session starts. Not that of what this process starts later: an engine, whose workers
    would be started by this program, too, and would not find its jobs."""
    before, program = dict(os.environ), worker_program()
    os.environ |= {
        "PYSPARK_PYTHON": program,
        "PYSPARK_DRIVER_PYTHON": program,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),  # where Spark looks for formats: the checkout
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def new_session(**settings: str) -> SparkSession:
    """The session of this process: there can be only one at a time."""
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    with surroundings():
        return builder.getOrCreate()
