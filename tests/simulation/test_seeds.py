"""Seeds that pass, the same seed twice, and mutations that must be detected."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.simulation.cases import KINDS, Case, run, seeds_from
from tests.simulation.mutations import MUTATIONS, broken
from tests.simulation.world import SimulationError

pytestmark = pytest.mark.interpreted
MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
FEW = 3  # seeds, always the same ones, without TIDELOG_LONG
QUICK = Case(7, "promotions", ("kill", "promote", "partition"), ("appends", "groups"), 1.5)
# Cases that failed once.
KEPT: tuple[Case, ...] = (
    # messages fall due by the clock of the old leader, which was ahead of the new one's: the check did not wait so long
    Case(2, "promotions", ("promote", "kill"), ("groups",), 1.5, drift=0.001),
    # WAITAOF counted two connections of one replica
    Case(
        1102,
        "promotions",
        ("one_way", "restart", "power", "kill_in_copy", "kill_at_step", "backlog", "promote", "promote"),
        ("delays", "delays"),
        appendfsync="everysec",
    ),
)


def test_a_seed_gives_the_same_run_in_any_process() -> None:
    first = run(QUICK)
    assert run(QUICK) == first
    assert first.confirmed > 20
    assert first.delivered > 10
    assert first.compared
    assert first.happened
    script = f"from tests.simulation.cases import Case, run; print(run({QUICK!r}).trace)"
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert other.stdout.strip() == first.trace


def test_another_seed_gives_another_run() -> None:
    one, other = Case(1, works=("appends",), seconds=0.5), Case(2, works=("appends",), seconds=0.5)
    assert run(one).trace != run(other).trace


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.kind} {kept.seed}")
def test_cases_that_failed_once(kept: Case) -> None:
    run(kept)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_detected(name: str) -> None:
    mutation = MUTATIONS[name]
    with broken(mutation):
        for tried in mutation.tried():
            try:
                run(tried)
            except SimulationError:
                break
        else:
            pytest.fail(f"no seed detects this mutation: {mutation.patches.__doc__}")
    run(tried)  # the seed detects the mutation, and not something else


@pytest.mark.long(short=True)
def test_many_seeds() -> None:
    end = time.monotonic() + MINUTES * 60
    first = int(time.time()) * 1000 if MINUTES else 0
    failed, count = [], 0
    for tried, message in seeds_from(first):
        count += 1
        if message is not None:
            print(message)
            failed.append((tried.seed, tried.kind))
        if count >= FEW and time.monotonic() > end:
            break
    print(f"{count} seeds of {', '.join(KINDS)}")
    assert not failed
