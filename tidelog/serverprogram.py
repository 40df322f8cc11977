"""The ``tidelog-server`` that is installed beside this package: how to start it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tidelog


def server_command() -> list[str]:
    """What starts it; arguments follow."""
    return [sys.executable, "-P", "-m", "_tidelog_server"]


def server_environment() -> dict[str, str]:
    """Ours, with the folder that holds this package first in PYTHONPATH."""
    here = str(Path(tidelog.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here, "PYTHONUNBUFFERED": "1"}
