"""The same work by another library: FastStream reads a stream of redis-server with a group, appends what a function
makes of it to another one, and acknowledges. One process, as ours.
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
