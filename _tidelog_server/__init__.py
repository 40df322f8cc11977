"""Where the server's parts lie in an installation, and how ``tidelog-server`` finds them. Private: nobody imports this.

The parts (``commands``, ``persistence``, ``replication``, ``resp``, ``respserver``, ``storage``) are top-level packages
of a checkout. Their names are too general for a user's site-packages, so an installation keeps them in this folder:

    site-packages/_tidelog_server/{__init__.py, commands/, storage/, ...}
    checkout/{_tidelog_server/__init__.py, commands/, storage/, ...}

The server's process puts that place in front of its path. No other process does.
"""

from __future__ import annotations

import sys
from pathlib import Path


def parts() -> Path:
    """The folder that holds the server's parts: this one in an installation, the one above it in a checkout."""
    here = Path(__file__).resolve().parent
    return here if (here / "respserver").is_dir() else here.parent


def main() -> int:
    """The ``tidelog-server`` program; returns its exit code."""
    sys.path.insert(0, str(parts()))
    from respserver.program import main as run

    return run()
