"""A Spark session as all measured ways get it: local[2], C2 compiler, RocksDB with changelog checkpointing."""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from benchmarks import measured
from benchmarks.jobs.loads import PARTITIONS

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final = {
    "spark.master": f"local[{PARTITIONS}]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.log.level": "ERROR",
}


def new_session() -> SparkSession:
    """The session of this process. Spark's Python workers run this interpreter, and import what is measured."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": measured.PYTHONPATH, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.Builder()
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    import tidelog.spark

    tidelog.spark.register(spark)
    return spark
