"""The collector of circles, in programs that run until they are told to stop."""

from __future__ import annotations

import gc
from typing import Final

GENERATIONS: Final = (20_000, 20, 50)  # thresholds of gc


def collect_less() -> None:
    """Look for cycles less often: what waits in buffers are many lists, and none of them is in a cycle.

    It saves a quarter of a worker's time. For a process that does nothing else; call it when all is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GENERATIONS)
