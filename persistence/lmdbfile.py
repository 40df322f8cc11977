"""Opening LMDB environments. Damage for which LMDB would raise a signal or a bare error code yields a clear message.

Rule 1: no file is mapped before ``lmdbpages`` has verified it.
Rule 2: no lmdb.Error leaves this package. ``reported`` converts it to an OSError (the disk or the system failed,
possibly temporarily) or a CorruptError (the file is damaged).
Rule 3: the map is address space, not disk space. It is so large that it need not grow while the server runs, because
growing would stop all readers. If the system grants less, the size is halved until it fits, but at each start it is
larger than the file. If the address space is limited (ulimit -v), the map takes a share of it, so that there is room
for the heap.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from persistence.lmdbpages import DamageError, verify
from persistence.permissions import FILE
from resp.errors import REMEDY, CorruptError

SMALLEST_MAP = 1 << 26  # bytes
LEAST_SPACE = 1 << 29  # minimum address space for the smallest maps and a heap of 100 MB

_DAMAGED = (
    lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError,
)  # fmt: skip
_ERRORS = (
    (lmdb.MapFullError, errno.ENOSPC, "its address space is used up: raise 'ulimit -v' and restart"),
    (lmdb.DiskError, errno.ENOSPC, "no space left on the device"),
    (lmdb.MemoryError, errno.ENOMEM, "not enough memory, or address space, to map it"),
    (lmdb.PanicError, errno.EIO, "LMDB stopped after a disk error: repair the disk and restart"),
)
_SYSTEM = {  # texts of system errors that LMDB reports without their number
    "No space left": errno.ENOSPC,
    "File too large": errno.EFBIG,
    "Disk quota": errno.EDQUOT,
    "Cannot allocate": errno.ENOMEM,
}


def open_env(
    directory: Path, map_size: int, databases: int, keys_of: bytes = b"", key_size: int = 0, sync: bool = True,
    known: Collection[bytes] = (), newer: Collection[bytes] = (), share: float = 1 / 4,
) -> tuple[lmdb.Environment, bytes]:  # fmt: skip
    """Open or create an environment. Also return the keys of the database ``keys_of``, see verify().

    ``map_size``: in bytes. ``sync``: without it, commits are not durable until the caller syncs. ``known``: the names
    of the databases. ``newer``: those that an older file may lack, see verify(). ``share``: the share of a limited
    address space that the map takes.

    Raises CorruptError, OSError.
    """
    keys = b""
    data = directory / "data.mdb"
    size = data.stat().st_size if data.exists() else 0
    if size:  # LMDB creates a file before it writes the first pages; an empty file is new
        try:
            keys = verify(data, keys_of, key_size, known, newer)
        except DamageError as error:
            raise CorruptError(f"{data}: {error}: {REMEDY}") from error
    least = max(SMALLEST_MAP, size + (size >> 2))
    map_size = max(map_size, 2 * size)
    limit = address_space()
    if limit is not None:
        map_size = min(map_size, int(limit * share))
        if map_size < least:
            needed = max(round(least / share), LEAST_SPACE) >> 20
            raise OSError(
                errno.ENOMEM, f"{data}: the address space of this process is limited to {limit >> 20} MB ('ulimit -v')"
                f", and this file needs a limit of at least {needed} MB"
            )  # fmt: skip
    while True:
        try:
            with reported(data):
                env = lmdb.open(
                    str(directory),
                    map_size=map_size,
                    max_dbs=databases,
                    max_readers=1024,
                    readahead=False,
                    sync=sync,
                    mode=FILE,
                )
            return env, keys
        except OSError as error:
            if error.errno != errno.ENOMEM or map_size // 2 < least:
                raise
            map_size //= 2


def address_space() -> int | None:
    """Return the limit of the address space in bytes (ulimit -v); None if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Convert the errors of LMDB (Rule 2)."""
    try:
        yield
    except lmdb.Error as error:
        raise translated(path, error) from error


def is_exhausted(error: OSError) -> bool:
    """Return whether a write failed because this process lacks memory or address space."""
    return error.errno == errno.ENOMEM or isinstance(error.__cause__, lmdb.MapFullError)


def translated(path: Path, error: lmdb.Error) -> OSError | CorruptError:
    """Convert an error of LMDB (Rule 2)."""
    text = str(error)
    if isinstance(error, _DAMAGED):
        return CorruptError(f"{path}: damaged ({text}): {REMEDY}")
    for kind, code, meaning in _ERRORS:
        if isinstance(error, kind):
            return OSError(code, f"{path}: {meaning}")
    for name, code in _SYSTEM.items():
        if name in text:
            return OSError(code, f"{path}: {text}")
    if "Input/output" in text:  # LMDB reports this after an incomplete write
        text = "input/output error, or no space left on the device"
    return OSError(errno.EIO, f"{path}: {text}")
