"""What is installed for each library, and how its program is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
PATIENCE: Final = 300.0  # seconds for a program


class Library(NamedTuple):
    """A library, and how many events its program gets: some seconds of work."""

    name: str
    requirement: str  # for pip; several, separated by spaces
    events: int
    file: str = ""  # of its program; "": its name

    @property
    def program(self) -> Path:
        return HERE / f"on_{self.file or self.name}.py"


LIBRARIES: Final = (
    Library("faststream", "faststream[redis]>=0.7.8,<0.8", 20_000),
    Library("taskiq", "taskiq-redis>=1.2,<2", 10_000),
    Library("arq", "arq>=0.28,<0.29", 4_000),
    Library("streaq", "streaq>=7.2,<8", 4_000),
)


def installed(library: Library, folder: Path) -> Path:
    """The Python of the library's virtual environment below ``folder``, which is made where it is not there."""
    python = folder / library.name / "bin" / "python"
    made = folder / library.name / "made"
    if not made.exists() or made.read_text() != library.requirement:
        print(f"Installing {library.requirement} into {folder / library.name}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / library.name)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *library.requirement.split()], check=True)
        made.write_text(library.requirement)
    return python


def version(library: Library, python: Path) -> str:
    """The version that is installed."""
    name = library.requirement.partition(">")[0].partition("[")[0]
    asked = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()


def rate(library: Library, python: Path, url: str, events: int | None = None) -> float:
    """Events a second of one worker over the Redis server at ``url``, which is empty."""
    command = [str(python), str(library.program), url, str(events or library.events)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    line = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith('{"events"')))
    return float(line["events"]) / float(line["seconds"])
