"""LMDB environments, opened with care: what LMDB would answer with a signal or a bare error code becomes a clear refusal.

The first two pages of ``data.mdb`` are meta pages; the one with the higher transaction ID counts. After a page header of 16 bytes:

    magic u32 0xBEEFC0DE | version u32 | address u64 | map size u64 | 2 x 48 bytes of databases (page size u32 first)
    | last page u64 | transaction u64

LMDB maps the file, so a page beyond its end would be SIGBUS. Hence: before it is opened, the file must reach to the last page;
and after each commit it is made to (``fit``), as pages that were taken and freed in one transaction are never written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import lmdb

from resp.errors import CorruptError

META = Struct("=IIQQ96sQQ")
META_AT = 16
MAGIC = 0xBEEFC0DE
REMEDY = "restore the directory from a backup, or from a replica"


def _needed(path: Path) -> int:
    """Bytes that the file must have. Raises CorruptError."""
    with path.open("rb") as file:
        first = file.read(4096)
        if len(first) < META_AT + META.size:
            raise CorruptError(f"{path}: cut short or empty: {REMEDY}")
        page = int.from_bytes(first[META_AT + 24 : META_AT + 28], "little")
        if first[META_AT : META_AT + 4] != MAGIC.to_bytes(4, "little") or page not in (4096, 8192, 16384, 32768, 65536):
            raise CorruptError(f"{path}: not an LMDB file, or its beginning is damaged: {REMEDY}")
        file.seek(page)
        second = file.read(4096)
    if len(second) < META_AT + META.size:
        raise CorruptError(f"{path}: cut short: {REMEDY}")
    metas = [META.unpack_from(raw, META_AT) for raw in (first, second)]
    if any(meta[0] != MAGIC for meta in metas):
        raise CorruptError(f"{path}: a meta page is damaged: {REMEDY}")
    newest = max(metas, key=lambda meta: meta[6])
    return int(newest[5] + 1) * page


def open_env(directory: Path, map_size: int, databases: int) -> lmdb.Environment:
    """Open or create. ``map_size`` is address space, not disk; halved until the system grants it. Raises CorruptError, OSError."""
    data = directory / "data.mdb"
    if data.exists() and data.stat().st_size:
        needed, actual = _needed(data), data.stat().st_size
        if actual < needed:
            raise CorruptError(f"{data}: cut short, {actual} bytes instead of {needed}: {REMEDY}")
        map_size = max(map_size, 2 * needed)
    while True:
        try:
            with reported(data):
                return lmdb.open(str(directory), map_size=map_size, max_dbs=databases, max_readers=1024, readahead=False)
        except OSError as error:
            if error.errno != errno.ENOMEM or map_size < 1 << 28:
                raise
            map_size //= 2


def fit(env: lmdb.Environment, path: Path) -> None:
    """Make the file reach to LMDB's last page (see above); sparse, so it costs no room."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size < needed:
        os.truncate(path, needed)


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """LMDB's errors as ours: OSError where the disk or the system refuses, CorruptError where the file is wrong."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise OSError(errno.ENOSPC, f"the map of {path} is full") from error
    except (lmdb.DiskError, lmdb.MemoryError, lmdb.LockError, lmdb.ReadonlyError) as error:
        raise OSError(errno.EIO, f"{path}: {error}") from error
    except (lmdb.CorruptedError, lmdb.PanicError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError) as error:
        raise CorruptError(f"{path}: damaged ({error}): {REMEDY}") from error
    except lmdb.Error as error:
        text = str(error)
        for name, code in (("No space left", errno.ENOSPC), ("File too large", errno.EFBIG), ("Cannot allocate", errno.ENOMEM)):
            if name in text:
                raise OSError(code, f"{path}: {text}") from error
        raise OSError(errno.EIO, f"{path}: {text}") from error
