from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import new_session
from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the run; skipped, and that said aloud, where Spark can't run."""
    pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")
    if shutil.which("java") is None:
        pytest.skip("no Java here, which Spark needs (Debian: apt-get install openjdk-17-jre-headless)")
    session = new_session()
    yield session
    session.stop()


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        yield client


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
