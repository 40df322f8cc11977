"""What the programs share."""

from __future__ import annotations

import json
import sys
import time

AT_ONCE = 100  # events that a library may have in work, or read at a time


def arguments() -> tuple[str, int]:
    """The server's URL, and how many events there shall be."""
    return sys.argv[1], int(sys.argv[2])


def order(number: int) -> dict[str, int | str | float]:
    """An event."""
    return {"id": number, "item": "tea", "price": 2.5, "city": "Catania", "paid": 1}


class Handled:
    """Counts events. ``add`` returns True with the last of them, after it has printed how long they took."""

    def __init__(self, count: int) -> None:
        self._left = self._count = count
        self._began = 0.0

    def add(self) -> bool:
        if self._left == self._count:
            self._began = time.perf_counter()
        self._left -= 1
        if self._left:
            return False
        print(json.dumps({"events": self._count - 1, "seconds": time.perf_counter() - self._began}), flush=True)
        return True
