from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import new_session, require_spark
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the run; its tests are skipped, with the reason, where Spark can't run."""
    require_spark()
    session = new_session()
    yield session
    session.stop()


@pytest.fixture
def load(spark: SparkSession, tidelog_server: Server) -> Callable[..., DataFrame]:
    """A batch read with these options (``_`` for ``.`` in names), and a schema if one is given."""

    def load(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("tidelog").option("url", tidelog_server.url)
        if schema:
            reader = reader.schema(schema)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return load


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
