"""The parent process of Spark's Python workers (``spark.python.daemon.module``), which has imported what tasks need.

Spark ends workers that were idle for a minute. A new worker is forked within milliseconds instead of spending seconds
on imports.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import tidelog.jobs.task.task  # noqa: F401 - loaded before workers are forked

if __name__ == "__main__":
    gc.freeze()
    manager()
