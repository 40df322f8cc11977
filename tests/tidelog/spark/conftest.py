from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import new_session, require_spark
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


COLD = 300  # seconds that a test may take: on a busy machine, the JVM alone takes a minute to begin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(COLD))


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
