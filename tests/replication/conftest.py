"""Servers for tests of replication: a cluster of the test's own, and those that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.cluster import Cluster, cluster
from tests.replication.clusters import Groups
from tests.replication.trio import Trios


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """A cluster without nodes."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Groups]:
    """Two groups of one member each, which share the slots evenly."""
    with cluster() as made:
        yield Groups(made, move_pause=5000)  # a busy machine needs longer than 200 ms


@pytest.fixture(scope="session")
def trios() -> Iterator[Trios]:
    made = Trios()
    yield made
    made.close()
