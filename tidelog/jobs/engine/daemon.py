"""What Spark's Python workers are forked from (``spark.python.daemon.module``): what tasks need is imported already.

Spark ends workers that were idle for a minute. A new one is there in milliseconds, instead of seconds of importing.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import tidelog.jobs.task.task  # noqa: F401 - so that workers have it

if __name__ == "__main__":
    gc.freeze()
    manager()
