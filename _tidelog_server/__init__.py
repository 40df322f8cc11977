"""The location of the server's packages in an installation, and the entry point of ``tidelog-server``. Private: only
the script imports it.

The packages (``commands``, ``coordinator``, ``persistence``, ``replication``, ``resp``, ``respserver``, ``storage``)
are top-level packages of a checkout. Their names are too general for a user's site-packages, so an installation keeps
them in this folder:

    site-packages/_tidelog_server/{__init__.py, commands/, storage/, ...}
    checkout/{_tidelog_server/__init__.py, commands/, storage/, ...}

The server's process prepends that directory to its path. Other processes do not.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

# These actions report success by their status, so a signal must not end them with status 0.
_ACTIONS = {"--restore", "--verify", "--test-config"}


def parts() -> Path:
    """Return the directory of the server's packages: this one in an installation, its parent in a checkout."""
    here = Path(__file__).resolve().parent
    return here if (here / "respserver").is_dir() else here.parent


def main() -> int:
    """Run ``tidelog-server``; return its exit code."""
    if not _ACTIONS.intersection(sys.argv):  # first, because the imports take a tenth of a second
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # as during the recovery: see respserver.program
    sys.path.insert(0, str(parts()))
    from respserver.program import main as run

    return run()
