"""Servers for tests of replication: a cluster of the test's own, and a trio that many tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import Cluster, cluster
from tests.replication.trio import Trios


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """A cluster without nodes."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="session")
def trios() -> Iterator[Trios]:
    made = Trios()
    yield made
    made.close()
