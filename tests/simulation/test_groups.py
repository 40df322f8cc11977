"""A simulated server group loses nothing that was acknowledged or seen, whatever fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.groups import GroupCase, case, run


def test_without_faults() -> None:
    result = run(GroupCase(1, faults=("failover",), seconds=2.0))
    assert result.acknowledged > 50


@pytest.mark.parametrize("seed", [9, 20, 31])
def test_seeds(seed: int) -> None:
    """9 and 20 have long times without a leader, 31 many epochs."""
    assert run(replace(case(seed), seconds=4.0)).acknowledged > 10


def test_a_lost_lease_can_be_described() -> None:
    """ROLE failed right after the coordinator had ended the lease."""
    assert run(case(126)).acknowledged > 10


def test_the_same_seed_is_the_same_run() -> None:
    short = replace(case(22), seconds=2.0)
    assert run(short) == run(short)
