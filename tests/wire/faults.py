"""What tests of failures share: a method of the server that refuses to work, and waiting for a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from respserver.testing import RunningServer


def refuse(*_: Any) -> None:
    raise OSError(28, "no space left, says the test")


class Fault:
    """Switches one method of an object of the server off and on. ``owner`` is called on the server's loop."""

    def __init__(self, hand: RunningServer, owner: Callable[[], Any], method: str) -> None:
        self.hand, self.owner, self.method = hand, owner, method

    def breaks(self) -> None:
        self.hand.call(lambda: setattr(self.owner(), self.method, refuse))

    def heals(self) -> None:
        self.hand.call(lambda: delattr(self.owner(), self.method))
