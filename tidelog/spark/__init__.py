"""The PySpark source and sink: ``format("tidelog")``. docs/spark.md is the guide.

Spark finds the format by name if the package is installed (``pyspark_tidelog``). ``register`` is for editable
installations, and for sessions that get the package in another way, such as ``--py-files``.

    optionvalues  declares the options of ``format("tidelog")``, and holds the values that were given
    positions  start and end positions in the options
    options   validates all options together, for reads and writes
    source    the data source and its readers, as Spark calls them
    offsets   the offsets of a query: positions, limits, and lost entries
    watch     detects without polling that there are no new entries
    filters   restricts a batch by the filters that Spark pushes down
    ranges    reads one range in a task, completely or not at all
    direct    reads entries from history objects, and the others from the server
    columns   converts schemas of Spark to those of ``tidelog.arrow``, which converts entries to columns
    sink      the writers, as Spark calls them
    commands  converts Arrow batches to TSTAGE commands
    partitioning  assigns rows to the partitions of a topic
    finite    finds numbers that JSON does not have
    routes    writes rows to several topics
    topics    compares the settings of a topic with options and columns before rows are written
    topicread  detects that the topic of a query has grown or was replaced
    lag       the lag of queries after each batch
    checks    the check that is stored with a batch, to distinguish a repetition from another batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["native", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` in a session. A repeated call has no effect."""
    from tidelog.spark.source import TidelogDataSource  # imported here, because tidelog.spark.options needs no pyspark

    spark.dataSource.register(TidelogDataSource)


def native() -> bool:
    """Return whether reads use the compiled helper. Otherwise they use hiredis: slower, with the same results."""
    from tidelog.arrow.pages import native  # imported here, because it needs pyarrow

    return native()
