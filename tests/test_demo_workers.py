"""scripts/demo --workers, with fewer readings than it has: it ends with status 1 if a promise is broken."""

from __future__ import annotations

import pytest

from examples.workers_readings import Reading
from scripts import demo_workers

DAYS, HOURS = 60, 24


@pytest.mark.slow
def test_the_demo_keeps_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Reading(f"day {day}", hour, 32.0 + day + hour / 2) for hour in range(HOURS) for day in range(DAYS)]
    demo_workers.play(rows, seconds=4.0)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 3
    assert f"convert (transactional): {DAYS * HOURS:,} readings of {DAYS} days" in printed
    assert "partition 7  " in printed
