"""The directory of states on a machine: ``--state-dir``, which may contain environment variables.

Rule: The process that uses the directory expands the variables, ``$NAME`` or ``${NAME}``, so on a cluster the directory
      may differ between executors. An unset variable is an error, not a literal name; such tasks are retried, possibly
      on another executor.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from tidelog.jobs.store.errors import StoreError

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)


def expanded(text: str) -> str:
    """Return the directory with the variables of this process. Raises StoreError if one is unset or empty."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not os.environ.get(name):
            raise StoreError(
                f"the state directory {text!r} needs the environment variable {name}, and {name} is not set on"
                f" {socket.gethostname()}: set it for Spark's worker or executors there (spark.executorEnv.{name}), or"
                " give the engine another --state-dir"
            )
        return os.environ[name]

    return _VARIABLE.sub(value, text)
