"""Where states are on a machine: ``--state-dir``, which may name environment variables, ``$NAME`` or ``${NAME}``.

Rule: the process that uses the folder puts them in, so on a cluster the folder may differ from executor to executor.
      One that is not set there is an error, not a folder of that name; tasks are tried again, perhaps elsewhere.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from tidelog.jobs.store import StoreError

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)


def expanded(text: str) -> str:
    """The folder, with this process's variables put in. StoreError where one is not set, or empty."""

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
