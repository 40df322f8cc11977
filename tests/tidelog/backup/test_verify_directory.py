"""``tidelog verify`` of a data directory."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.persistence.datakit import checkpoint, opened
from tests.persistence.test_scrub import damage_node, fill
from tidelog.cli.program import main


def test_a_directory_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        fill(ks)
        checkpoint(log, ks)
        used = CliRunner().invoke(main, ["verify", str(path)])
        assert used.exit_code == 1
        assert "in use by another tidelog-server" in used.output
    sound = CliRunner().invoke(main, ["verify", str(path)])
    assert sound.exit_code == 0, sound.output
    assert "120 nodes" in sound.output
    assert "all intact" in sound.output
    damage_node(path)
    damaged = CliRunner().invoke(main, ["verify", str(path), "--json"])
    assert damaged.exit_code == 1
    report = json.loads(damaged.stdout)
    assert report["intact"] is False
    assert ["node 50 of stream 1" in problem for problem in report["problems"]] == [True]
    text = CliRunner().invoke(main, ["verify", str(path)])
    assert text.exit_code == 1
    assert "1 problem" in text.output
