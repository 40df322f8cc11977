"""Streams as a source and a sink of PySpark: ``format("tidelog")``. Users read docs/spark.md.

Spark finds the format by name where the package is installed (``pyspark_tidelog``). ``register`` is for editable
installs, and for sessions that get the package another way, such as ``--py-files``.

    given     every option of ``format("tidelog")``, declared once, and as it was given
    places    what to read, and where to begin and to end, as options say it
    options   all options read and checked together: what a read and a write need
    source    the data source and its readers, as Spark calls them
    offsets   what a query has read of each stream, how far it may read, what was lost
    watch     knowing that nothing new came, without asking
    filters   what a batch need not read, from the filters that Spark pushes down
    ranges    what a task does: read one range, completely or not at all
    pages     entries in RESP to columns of bytes: compiled, or by hiredis
    _rows     the compiled way: _words.h RESP to words, _rows.c words to columns, _arrow.h columns in Arrow's layout,
              _hash.h keys to partitions
    values    columns of bytes to columns of a type, and which values did not fit
    names     names of fields, which are any bytes, as text and back
    columns   pages to Arrow batches, for the default row and for a schema of the user's
    sink      the writers, as Spark calls them
    commands  Arrow batches to TSTAGE commands
    partitioning  rows to the partitions of a topic
    finite    numbers that JSON does not have
    routes    rows that say which of several topics they are for
    topics    a topic's facts, compared with options and columns before rows are written
    topicread  the topic that a query reads: whether it has grown, or is another one
    lag       how far queries are behind, after each batch
    checks    what is kept with a batch, to tell a repetition from another batch of the same number
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["native", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` in a session. Doing it again does no harm."""
    from tidelog.spark.source import TidelogDataSource  # here: tidelog.spark.options needs no pyspark

    spark.dataSource.register(TidelogDataSource)


def native() -> bool:
    """Whether reads use the compiled helper. If not, they use hiredis, which is slower and gives the same results."""
    from tidelog.spark.pages import native  # here: it needs pyarrow

    return native()
