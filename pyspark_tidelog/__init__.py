"""Registers ``format("tidelog")``: Spark searches its path for packages named pyspark_*."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
