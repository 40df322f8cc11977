"""Lets Spark find ``format("tidelog")`` by itself: it looks into the packages on its path that are named pyspark_*."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
