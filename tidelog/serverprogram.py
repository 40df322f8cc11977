"""How to start the ``tidelog-server`` that is installed with this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tidelog


def server_command() -> list[str]:
    """Return the command that starts it, without arguments."""
    return [sys.executable, "-P", "-m", "_tidelog_server"]


def server_environment() -> dict[str, str]:
    """Return this process's environment, with the directory of this package first in PYTHONPATH."""
    here = str(Path(tidelog.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here, "PYTHONUNBUFFERED": "1"}
