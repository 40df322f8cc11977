"""The simulated commit protocol over several groups: each number is in the outputs once, and no stage remains."""

from __future__ import annotations

import time

import pytest

from tests.simulation.closing import ClosedCommits, ClosingDriver, IntendsToClose, PublishesOnlyTheLast
from tests.simulation.commitmutations import SEEDS
from tests.simulation.commits import Commits, Driver, RepeatingDriver, run
from tests.simulation.test_seeds import MINUTES
from tests.simulation.world import SimulationError


@pytest.mark.parametrize("seed", range(8))
def test_seeds(seed: int) -> None:
    assert run(seed).deaths > 0


@pytest.mark.parametrize("seed", range(8))
def test_seeds_of_the_other_order(seed: int) -> None:
    assert run(seed, kind=RepeatingDriver).deaths > 0


def test_the_faults_occur() -> None:
    made = run(1)
    assert made.moves > 0
    assert made.started > 2
    assert run(1).turns == made.turns  # the same seed is the same run


def test_without_faults() -> None:
    assert run(3, faults=()).deaths == 0


@pytest.mark.parametrize("broken", SEEDS, ids=lambda broken: broken.__name__)
def test_a_broken_rule_is_detected(broken: type[Driver] | type[Commits]) -> None:
    """If the seed does not detect it any more, others are tried."""
    for seed in (SEEDS[broken], *range(40)):
        try:
            if issubclass(broken, Driver):
                run(seed, kind=broken)
            else:
                run(seed, world=broken)
        except SimulationError:
            return
    pytest.fail(f"no seed detects this mutation: {broken.__doc__}")


@pytest.mark.parametrize("seed", range(8))
def test_seeds_with_a_fence_that_is_closed(seed: int) -> None:
    assert run(seed, kind=ClosingDriver, world=ClosedCommits).started > 1


@pytest.mark.parametrize(("broken", "seed"), [(PublishesOnlyTheLast, 350), (IntendsToClose, 118)])
def test_a_broken_rule_of_the_end_is_detected(broken: type[Driver], seed: int) -> None:
    """If the seed does not detect it any more, others are tried."""
    for each in (seed, *range(600)):
        try:
            run(each, kind=broken, world=ClosedCommits)
        except SimulationError:
            return
    pytest.fail(f"no seed detects this mutation: {broken.__doc__}")


@pytest.mark.long(short=True)
def test_many_seeds() -> None:
    end, seed, failed = time.monotonic() + MINUTES * 60, int(time.time()) * 1000 if MINUTES else 0, []
    while True:
        try:
            run(seed)
            run(seed, kind=RepeatingDriver)
            run(seed, kind=ClosingDriver, world=ClosedCommits)
        except SimulationError as error:
            print(error)
            failed.append(seed)
        seed += 1
        if time.monotonic() >= end:
            break
    assert not failed
