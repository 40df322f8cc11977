"""Long commands turn by turn, and something long to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

MANY = 5000  # slices have 1000


def fill(c: Raw) -> list[bytes]:
    """A stream whose MANY entries are pending in a group; their IDs."""
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(MANY))
    return [entry[0] for entry in c("TREAD", "s", 0, MANY, "GROUP", "g", 0, "RETRY", 1000, 0)]


class Steps:
    """Calls ``between`` in the server's thread after each turn of a long command."""

    def __init__(self, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, between: Callable[[int], None]) -> None:
        self.turns = 0
        slicing = hand.server.slicing
        turn = slicing._turn

        def counted() -> None:
            turn()
            self.turns += 1
            between(self.turns)

        monkeypatch.setattr(type(slicing), "_turn", lambda _: counted())
