"""docs/flows-other-programs.md names every operator and every connector that users of other programs look for."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.flows.registry import CONNECTORS, OPERATORS

PAGE = (Path(__file__).parents[3] / "docs" / "flows-other-programs.md").read_text()
OURS = {"counter", "history", "passthrough", "fault", "script", "dead_letters"}  # have no counterpart


def test_all_operators_and_connectors_are_named() -> None:
    linked = set(re.findall(r"\[`(\w+)`\]\(flows-(?:connectors|operators)\.md#\1\)", PAGE))
    known = {*OPERATORS, *CONNECTORS}
    assert linked <= known, linked - known
    assert known - OURS <= linked, known - OURS - linked
