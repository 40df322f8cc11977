"""tidelog streams in PySpark: ``spark.read``, ``spark.readStream`` with ``format("tidelog")``. See docs/spark.md.

Where this package is installed Spark finds the format by itself (``pyspark_tidelog``); ``register`` is for sessions
that were handed the package later, for editable installs, and for those who like to see it happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["native", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("tidelog")`` known to a session."""
    from tidelog.spark.source import TidelogDataSource  # here: options and wire need no pyspark

    spark.dataSource.register(TidelogDataSource)


def native() -> bool:
    """Whether reads go through the compiled helper here; if not, through hiredis: slower, with the same results."""
    from tidelog.spark.pages import native  # here: it needs pyarrow

    return native()
