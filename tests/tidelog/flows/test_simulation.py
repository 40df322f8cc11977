"""Seeds of a flow in a simulation. ``TIDELOG_SEEDS=20000`` runs so many, ``TIDELOG_SEEDS=17:18`` the one seed 17."""

from __future__ import annotations

import os

import pytest

from tests.tidelog.flows.simulation import CONTROLS, TOPOLOGIES, case, fails, run, shrunk

PARTS = 8  # so that several processes share the work


def seeds() -> range:
    first, _, last = os.environ.get("TIDELOG_SEEDS", "450").rpartition(":")
    return range(int(first or 0), int(last))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(3600)
def test_invariants_hold_whatever_happens(part: int) -> None:
    for seed in seeds()[part::PARTS]:
        problem = fails(case(seed))
        if problem:
            smaller = shrunk(case(seed))
            pytest.fail(
                f"seed {seed}: {problem}\n\nTo see it again, smaller ({fails(smaller)}):\n\n"
                f"from tests.tidelog.flows.simulation import Case, run\nrun({smaller})\n"
            )


def test_all_topologies_and_controls_come_in_turn() -> None:
    made = [case(seed) for seed in range(len(TOPOLOGIES) * len(CONTROLS))]
    assert {(each.topology, each.control) for each in made} == {(top, way) for top in TOPOLOGIES for way in CONTROLS}


def test_a_seed_is_repeated_exactly() -> None:
    first, second = run(case(7)), run(case(7))
    assert first.loop.steps == second.loop.steps
    assert first.delivered == second.delivered
