"""Old leaders that clients wrote to while they were isolated rejoin, and delete the end of their logs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from persistence.rewind import rewind
from respserver.roles import link
from tests.simulation.cases import Case, run

REJOINING = Case(8, "promotions", ("promote", "promote", "diverge", "partition", "kill"), ("appends", "groups"), 2.0)


@pytest.mark.interpreted
def test_old_leaders_delete_the_end_of_their_logs() -> None:
    """The run checks that all members are equal, and that nothing is lost that all replicas had confirmed."""
    deleted: list[int] = []

    def counted(directory: Path, offset: int) -> int:
        deleted.append(rewind(directory, offset))
        return deleted[-1]

    with patch.object(link, "rewind", counted):
        result = run(REJOINING)
    assert result.compared
    assert sum(deleted) > 0, "no member has deleted anything: another seed is needed"
