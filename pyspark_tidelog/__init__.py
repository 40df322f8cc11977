"""How Spark finds ``format("tidelog")`` by name: it searches its path for packages named pyspark_*."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
