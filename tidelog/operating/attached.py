"""Runs a module as a program until the process that started it ends.

    python -P attached.py MODULE [ARGUMENT]...

Standard input is a pipe from that process, which writes nothing. It is closed if that process ends, even by SIGKILL.
This program then gets SIGTERM, and SIGKILL after PATIENCE. PR_SET_PDEATHSIG would do the same on Linux only, and only
for the thread that started the program.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

PATIENCE = 2.0  # s that the program has to end; acknowledged writes survive SIGKILL


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    del sys.argv[0]
    threading.Thread(target=_watch, daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
