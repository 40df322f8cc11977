"""scripts/demo --flows, with fewer readings than it has: it ends with status 1 if a promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="no aiohttp here (pip install 'tidelog[flows]')")

from examples.workers_readings import Reading
from scripts import demo_flows, screenshot

DAYS, HOURS = 200, 24


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_demo_keeps_its_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [Reading(f"day {day}", hour, 32.0 + day + hour / 2) for hour in range(HOURS) for day in range(DAYS)]
    picture = tmp_path / "page.png"
    demo_flows.play(rows, seconds=8.0, picture=picture)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 5
    assert f"each of {DAYS * HOURS:,} readings was delivered" in printed
    assert "paused" in printed
    if screenshot.browser() is None:
        assert "no browser here" in printed
    else:
        assert picture.read_bytes().startswith(b"\x89PNG"), printed


def test_a_machine_without_a_browser_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    demo_flows.photographed("http://127.0.0.1:1/", tmp_path / "page.png")
    assert "no browser here" in capsys.readouterr().out
    (tmp_path / "chromium").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "chromium").chmod(0o755)
    demo_flows.photographed("http://127.0.0.1:1/", tmp_path / "page.png")
    assert "has ended with status 3" in capsys.readouterr().out
