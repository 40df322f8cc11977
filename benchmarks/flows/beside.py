"""The same work by other programs, in one process, as ours.

FastStream reads a stream of redis-server with a group, appends what a function makes of it to another one, and
acknowledges. Benthos, the engine of Redpanda Connect, filters events and computes fields.
"""

from __future__ import annotations

import shutil
import statistics
from typing import Final

from benchmarks.peers import programs
from benchmarks.workers.beside import FOLDER, Beside, served

FASTSTREAM: Final = next(each for each in programs.LIBRARIES if each.name == "faststream")._replace(
    file="faststream_publishing"
)
BENTHOS: Final = programs.Library("benthos", "mq-bridge-connect==0.2.2 mq-bridge==1.2.0", 1_000_000)
BENTHOS_VERSION: Final = "4.84.0"  # that the package contains, by its notices


def benthos() -> float:
    """CPU seconds per event of the mappings, in one run."""
    python = programs.installed(BENTHOS, FOLDER)
    return 1 / programs.rate(BENTHOS, python, "")


def faststream(runs: int) -> Beside:
    """FileNotFoundError without redis-server."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise FileNotFoundError("no redis-server here (Debian: apt-get install redis-server)")
    python = programs.installed(FASTSTREAM, FOLDER)
    rates = []
    for _ in range(runs):
        with served(binary) as url:
            rates.append(programs.rate(FASTSTREAM, python, url))
    return Beside("FastStream", programs.version(FASTSTREAM, python), statistics.median(rates))
