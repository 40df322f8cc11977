"""The directory of a cluster on one machine.

    cluster.json     the plan (``plan``); marks the directory
    lock             locked while a supervisor runs; has its process ID (``memberprogram``)
    coordinator/     the coordinator of all groups
    1a/data/         the data directory of the member 1a
    1a/process       locked while the member runs; has its process ID
    1a/server.log    the output of the member; it is appended to

Rule: a directory that has other files, but no plan, is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidelog.cluster import memberprogram, plan
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.plan import ClusterPlan
from tidelog.cluster.processes import RunningProcess, find

PLAN: Final = "cluster.json"
LOCK: Final = "lock"
_NEW: Final = "cluster.json.new"
_EDITED: Final = "editing"  # locked while the plan is changed


class ClusterFolder:
    """The directory of a cluster."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.full: Final = path.absolute()

    @property
    def coordinator(self) -> str:
        """The URL of the coordinator."""
        return f"file://{quote(str(self.full / 'coordinator'))}"

    def data(self, member: str) -> Path:
        return self.full / member / "data"

    def process(self, member: str) -> Path:
        return self.full / member / "process"

    def log(self, member: str) -> Path:
        return self.path / member / "server.log"

    def exists(self) -> bool:
        """Return whether the directory has a plan. Raises ClusterError if it has other files, or can't be read."""
        with _errors(self.path):
            if (self.path / PLAN).exists():
                return True
            if self.path.exists():
                foreign = sorted(name for name in os.listdir(self.path) if name not in (LOCK, _NEW, _EDITED))
                if foreign:
                    raise ClusterError(
                        f"{self.path} has files that are not a cluster's ({foreign[0]}): use a new or empty directory"
                    )
        return False

    def load(self) -> ClusterPlan:
        """Return the plan. Raises ClusterError if there is none."""
        if not self.exists():
            raise ClusterError(f"{self.path} is not the directory of a cluster; tidelog cluster up --dir creates one")
        with _errors(self.path):
            return plan.decode((self.path / PLAN).read_text("utf-8", "replace"), str(self.path / PLAN))

    def save(self, new: ClusterPlan) -> None:
        """Replace the plan, and sync it. Raises ClusterError."""
        with _errors(self.path):
            replacement = self.path / _NEW
            fd = os.open(replacement, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may contain a password
            with open(fd, "w", encoding="utf-8") as file:
                file.write(new.encode())
                file.flush()
                os.fsync(fd)
            replacement.replace(self.path / PLAN)
            _sync(self.path)

    @contextmanager
    def editing(self) -> Iterator[ClusterPlan]:
        """Yield the plan, which no other process changes until the end of the block. Raises ClusterError."""
        self.load()
        with _errors(self.path), (self.path / _EDITED).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self.load()

    def stamp(self) -> tuple[int, int]:
        """Return what changes with each replacement of the plan. Raises OSError."""
        status = os.stat(self.path / PLAN)
        return status.st_mtime_ns, status.st_ino

    def create(self, member: str) -> None:
        """Create the directory of a member. Raises ClusterError."""
        with _errors(self.path):
            (self.full / member).mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Create the directory if it is missing, and lock it as its supervisor. Raises ClusterError."""
        with _errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                lock = memberprogram.claim(str(self.path / LOCK))
            except BlockingIOError:
                owner = self.supervisor()
                by = f"process {owner.pid}" if owner is not None else "another process"
                raise ClusterError(
                    f"{by} runs the cluster in {self.path}: stop it (tidelog cluster down --dir {self.path}),"
                    " or use another --dir"
                ) from None
        try:
            yield
        finally:
            os.close(lock)

    def supervisor(self) -> RunningProcess | None:
        """Return the process that runs the cluster. Raises ClusterError."""
        with _errors(self.path):
            return find(self.path / LOCK)

    def member(self, name: str) -> RunningProcess | None:
        """Return the process of a member; None if it does not run. Raises ClusterError."""
        with _errors(self.path):
            return find(self.process(name))


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClusterError(f"{error.filename or path} can't be used: {error.strerror}; use another --dir") from None


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
