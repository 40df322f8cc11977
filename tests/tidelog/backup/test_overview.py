"""``tidelog backups``: what can be restored, who writes to the target, and how old it is. Without servers."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tidelog.backup.kit import tidelog
from tests.tidelog.backup.test_until import BEGAN, add, base, writer
from tidelog.backup.lock import STALE, TargetLock
from tidelog.backup.targets import LocalTarget
from tidelog.cli.program import main


@pytest.fixture
def place(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path)


def test_json(place: LocalTarget) -> None:
    first = base(place)
    log = writer(first)
    add(log, place, (500, [b"x" * 10]))
    second = base(place, BEGAN + 2000, offset=10, replid="f" * 40)
    place.write("20261127T080000.000Z-1.json", b"damaged")
    found = json.loads(tidelog("backups", place.shown, "--json"))
    assert [each["name"] for each in found["backups"]] == [first.name, second.name]
    assert found["damaged"].keys() == {"20261127T080000.000Z-1"}
    assert [(each["begin"], each["end"], each["end_ms"], each["log_files"]) for each in found["ranges"]] == [
        (1000, 1010, BEGAN + 500, 1), (10, 10, BEGAN + 2000, 0),
    ]  # fmt: skip
    assert found["writer"] is None
    assert abs(found["age_ms"] - max(0, time.time() * 1000 - BEGAN - 2000)) < 10_000
    output = tidelog("backups", place.shown)
    assert "no process writes to the target; the newest state is" in output
    assert "is damaged or incomplete" in output


def test_the_process(place: LocalTarget) -> None:
    base(place)
    with TargetLock(place):
        assert "a backup is being written by process" in tidelog("backups", place.shown)
    behind: list[float | None] = [None]
    with TargetLock(place, behind=lambda: behind[0]) as lock:
        assert "; it has just started, or takes a base backup" in tidelog("backups", place.shown)
        behind[0] = 7.25
        lock._write()
        assert re.search("; the target was up to date [78] s ago", tidelog("backups", place.shown))
        writer = json.loads(tidelog("backups", place.shown, "--json"))["writer"]
        assert (writer["continuous"], writer["behind_ms"]) == (True, 7250)
        tidelog("backups", place.shown, "--max-age", 30)
        old = CliRunner().invoke(main, ["backups", place.shown, "--max-age", "5"])
        assert old.exit_code == 1
        assert re.search(r"was up to date [78] s ago \(--max-age 5\)", old.output)


@pytest.mark.parametrize("age", [100, STALE + 100])
def test_a_process_that_may_have_ended(place: LocalTarget, age: int) -> None:
    """The time since its last message counts, too. A lock that is too old means nothing."""
    base(place)
    facts = {"host": "elsewhere", "pid": 1, "began": 1, "seen": int(time.time()) - age}
    facts |= {"continuous": True, "behind": 20}
    place.write("locks/other.json", json.dumps(facts).encode())
    found = json.loads(tidelog("backups", place.shown, "--json"))
    if age < STALE:
        assert 119 <= found["age_ms"] / 1000 < 130
    else:
        assert found["writer"] is None
