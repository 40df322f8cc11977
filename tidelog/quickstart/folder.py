"""The directory of a quickstart.

    data/             the data directory of the server
    server.log        the output of the server since the last start
    samples.log       the output of the sample programs since the last start
    console.jsonl     the audit log of the console
    quickstart.json   marks the directory, and is locked while a quickstart uses it

Rule: the sample data must not be mixed with other data. A directory that has files, but no marker, is refused.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from tidelog.quickstart.errors import QuickstartError

MARKER: Final = "quickstart.json"
FORMAT: Final = '{"quickstart": 1}\n'
PATIENCE: Final = 3.0  # s that the programs of a killed quickstart have to end


@contextmanager
def opened(path: Path | None) -> Iterator[tuple[Path, int]]:
    """Create the directory if necessary, and lock it. Yields it, and the file descriptor of the lock.

    path: None is a temporary directory, which is removed at the end. Raises QuickstartError if it can't be used.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidelog-quickstart-")) if path is None else path
    try:
        with _locked(folder) as lock:
            yield folder, lock
    finally:
        if path is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    marker = folder / MARKER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists() and any(folder.iterdir()):
            raise QuickstartError(
                f"{folder} has files that quickstart did not create: use --dir with a new directory, or --temporary"
            )
        file = marker.open("a")
    except OSError as error:
        raise QuickstartError(
            f"{error.filename or folder} can't be used: {error.strerror}; use another --dir, or --temporary"
        ) from None
    with file:
        until = monotonic() + PATIENCE
        while not _lock(file.fileno()):
            if monotonic() > until:
                raise QuickstartError(f"another quickstart uses {folder}: stop it, or use another --dir")
            sleep(0.05)
        if not marker.stat().st_size:
            file.write(FORMAT)
            file.flush()
        yield file.fileno()


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
