"""Checks of the directory of `file:`: its file system, foreign files, permissions.

    DIRECTORY/format             "tidelog coordinator 1 ID": marks the directory; ID is random
    DIRECTORY/keys/KEY/          the versions of a key (KEY is percent-encoded); kept when the key is deleted
    DIRECTORY/leases/BOOT/ID/    the versions of a lease, and its lock; BOOT is the machine's boot ID
    DIRECTORY/.new-...           files that are being written

The directory may be removed when all members have stopped and the group is no longer needed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import Final

from .interface import CoordinatorConfigError, CoordinatorError
from .versions import NEW, sync_directory

FORMAT: Final = "format"
_MARK: Final = re.compile(r"tidelog coordinator (\d+) ([0-9a-f]{32})\n?")
_ABANDONED: Final = 60.0  # seconds after which a file that is being written belongs to a process that has died

_ABSENT: Final = (
    "mount or restore it, or check the URL. If the state of the group is lost, stop all members, delete the file"
    " 'group' in the directory of each member, and start the member with the most data first"
)

# Machines that share one of these have different boot clocks, so each would consider the leases of the others expired.
_NETWORK: Final = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2",
    "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip


def prepare(directory: Path, create: bool) -> None:
    """Create missing parts of a coordinator's directory; with ``create``, also the directory.

    Raises CoordinatorConfigError if it is not a directory for a coordinator. Raises CoordinatorError if it can't be
    used now, because it is missing, not mounted, or not accessible.
    """
    try:
        if not _is_directory(directory.parent):
            raise CoordinatorError(f"{directory}: the directory {directory.parent} does not exist: create or mount it")
        if not _is_directory(directory):
            if not create:
                raise CoordinatorError(f"{directory} does not exist: {_ABSENT}")
            directory.mkdir(mode=0o700, exist_ok=True)
        kind = file_system(directory)
        if kind in _NETWORK:
            raise CoordinatorConfigError(
                f"{directory} is on a network file system ({kind}), whose machines share no clock: "
                "use a local directory or etcd://"
            )
        _mark(directory, create)
        for name in ("keys", "leases"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        _check_access(directory)
        _remove_abandoned(directory)
    except FileExistsError:
        raise CoordinatorConfigError(f"{directory} is not a directory: use a directory") from None
    except OSError as error:
        raise CoordinatorError(
            f"{directory} cannot be used: {error.strerror}: run all members as one user that may write there"
        ) from error


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory. Raises CoordinatorConfigError if it is something else. Raises OSError,
    CoordinatorError."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return True
    except FileNotFoundError:
        if path.is_symlink():  # without this check, the target would be created
            raise CoordinatorError(
                f"{path} is a symbolic link to {os.readlink(path)}, which does not exist: create or mount it"
            ) from None
        return False
    except NotADirectoryError:
        pass
    raise CoordinatorConfigError(f"{path} is not a directory: use a directory")


def identity(directory: Path) -> tuple[int, int]:
    """Return what distinguishes a directory's mark from that of a directory that has replaced it. Raises OSError."""
    status = os.stat(directory / FORMAT)
    return status.st_dev, status.st_ino


def _mark(directory: Path, create: bool) -> None:
    """Create the mark, or check it."""
    path = directory / FORMAT
    if not path.exists():
        foreign = sorted(name for name in os.listdir(directory) if not name.startswith(NEW))
        if foreign and not path.exists():  # another member may have created it since
            raise CoordinatorConfigError(
                f"{directory} has files that are not a coordinator's ({foreign[0]}): use an empty or new directory"
            )
        if not create and not path.exists():
            raise CoordinatorError(f"{directory} is empty: {_ABSENT}")
        new = directory / f"{NEW}{secrets.token_hex(8)}"
        try:
            with new.open("x", encoding="ascii") as file:
                file.write(f"tidelog coordinator 1 {secrets.token_hex(16)}\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(new, path)
            sync_directory(directory)
            sync_directory(directory.parent)
        except FileExistsError:  # another member was faster
            pass
        finally:
            new.unlink(missing_ok=True)
    found = _MARK.fullmatch(path.read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise CoordinatorConfigError(f"{path} is damaged: restore the directory from a backup, or use a new one")
    if found[1] != "1":
        raise CoordinatorConfigError(f"{path} has format {found[1]} of a newer version of tidelog: use that version")


def _check_access(directory: Path) -> None:
    for path in (directory, directory / "keys", directory / "leases"):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise CoordinatorError(f"{path} is not writable: run all members as one user that may write there")


def _remove_abandoned(directory: Path) -> None:
    for name in os.listdir(directory):
        path = directory / name
        try:
            if name.startswith(NEW) and time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()
        except FileNotFoundError:
            pass


def remove_leases_of_other_boots(leases: Path, boot: str) -> None:
    """Remove the leases of earlier boots of the machine, which have all expired."""
    for name in os.listdir(leases):
        if name != boot:
            shutil.rmtree(leases / name, ignore_errors=True)


def file_system(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that has a directory; empty if the system does not tell."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:  # ID, parent, major:minor, ..., "-", type, source, options
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [wanted]:
            return right.split(" ", 1)[0]
    return ""
