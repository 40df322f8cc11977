"""Cleans up after a demo that was killed: python -P demo_cleanup.py DIRECTORY PID...

Standard input is a pipe from the demo, which writes nothing. If the demo ends, even by SIGKILL, the pipe is closed.
These processes, which the demo has started, are then killed, and the directory is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ATTEMPTS: Final = 50  # to remove a directory, to which children of the killed processes may still write
PAUSE: Final = 0.1  # seconds between them


@contextmanager
def cleanup(directory: Path, *pids: int) -> Iterator[None]:
    """Clean up if this process is killed. Otherwise, it stops the processes and removes the directory itself."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(directory), *map(str, pids)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def main(directory: str, pids: list[int]) -> None:
    handles = [os.pidfd_open(pid) for pid in pids]  # another process can get the number later
    while os.read(0, 1024):
        pass
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    for _ in range(ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], [int(each) for each in sys.argv[2:]])
