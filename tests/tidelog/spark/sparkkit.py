"""A Spark session that starts in seconds, for the tests and for the drivers that they kill."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]

#: No UI, loopback only, the C1 compiler alone, and a task that fails may be tried three times.
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


def worker_program() -> str:
    """What starts Spark's Python workers: without pyspark's zip on the path, from which imports take half a second."""
    path = Path(tempfile.mkdtemp(prefix="tidelog-spark-")) / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    path.chmod(0o700)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return str(path)


def new_session(**settings: str) -> SparkSession:
    """A session of this process; there can be one at a time."""
    program = worker_program()
    os.environ |= {
        "PYSPARK_PYTHON": program,
        "PYSPARK_DRIVER_PYTHON": program,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),  # how Spark's look-up of formats finds the checkout
    }
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
