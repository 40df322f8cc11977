"""The clock of leases, which continues while the machine is suspended, and the boot that it belongs to.

Linux's CLOCK_BOOTTIME counts from the start of the machine and is the same for all its processes, including those in
containers (not for a process in a time namespace of its own, which containers do not use by default). Changes of the
wall clock do not affect it. Readings of different boots cannot be compared: the ID of the boot tells them apart.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # elsewhere: as good as the system has it
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return the seconds since the start of the machine, including those during which it was suspended."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return the ID of this start of the machine. Raises OSError where the system has none."""
    return BOOT_ID.read_text(encoding="ascii").strip()
