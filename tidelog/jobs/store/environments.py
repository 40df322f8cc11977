"""LMDB environments, kept open by the process from task to task: to open one takes longer than a small commit.

Rule 1: an environment is used only by who holds the lock of its store (``locks``).
Rule 2: an environment is that of its files, not of their path. Where the files were replaced, it is opened anew.
Rule 3: what was cut short is not mapped (SIGBUS): the file is as long as it was, or it is not used.
Rule 4: what a fork inherits is closed and opened anew. No transaction is left in what is kept: to end one in the child
        would end it for its parent. So a store that is held is not for a child.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from tidelog.jobs.store.errors import StoreUnusableError, reported

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SIZES: Final = (1 << 38, 1 << 36, 1 << 34, 1 << 32, 1 << 30)  # of the map: the largest that the system allows
KEPT: Final = 32  # environments that nobody uses
_DATABASES: Final = (b"data", b"due", b"undo", b"meta")

_idle: OrderedDict[Path, StoreEnvironment] = OrderedDict()
_guard = threading.Lock()


def boot_id() -> str:
    """Of this start of the machine; empty where the system has none, and files are synced instead."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, eq=False)
class StoreEnvironment:
    """An open environment and its databases."""

    env: lmdb.Environment
    data: lmdb._Database  # stored key: record
    due: lmdb._Database  # deadline u64 | stored key: nothing
    undo: lmdb._Database  # stored key: its record before the last epoch; empty if there was none
    meta: lmdb._Database
    identity: tuple[int, int, int, int]
    pid: int


def take(path: Path, least: int) -> StoreEnvironment:
    """The environment of the directory, which must have one of ``least`` bytes or more, or none at all.

    StoreUnusableError where there is something else; StoreFullError where the system has no room.
    """
    with reported(path):
        with _guard:
            kept = _idle.pop(path, None)
        size = _size(path)
        if size is not None and size < max(least, 2 * 4096):
            _close(kept)
            raise StoreUnusableError(f"{path} was cut short: {size} bytes of {max(least, 8192)}")
        if kept is not None and size is not None and kept.pid == os.getpid() and kept.identity == _identity(path):
            return kept
        _close(kept)
        return _opened(path, size is None)


def give_back(path: Path, environment: StoreEnvironment) -> None:
    """It is not used any more, and kept for the next."""
    with _guard:
        before = _idle.pop(path, None)
        late = [_idle.pop(other) for other in list(_idle) if not _size(other)]  # removed: the disk has it until then
        _idle[path] = environment
        late += [_idle.popitem(last=False)[1]] if len(_idle) > KEPT else []
    for one in (before, *late):
        _close(one)


def forget(path: Path) -> None:
    """Close the environment of a directory that is going to be replaced."""
    with _guard:
        kept = _idle.pop(path, None)
    _close(kept)


def file_size(path: Path) -> int:
    return _size(path) or 0


def _opened(path: Path, new: bool) -> StoreEnvironment:
    path.mkdir(parents=True, exist_ok=True)
    sync = not boot_id()
    for at, size in enumerate(SIZES):
        try:
            env = lmdb.open(
                str(path), map_size=size, max_dbs=len(_DATABASES), sync=sync, metasync=sync, readahead=False,
                meminit=False, create=new,
            )  # fmt: skip
            break
        except lmdb.MemoryError:
            if at == len(SIZES) - 1:
                raise
    try:
        data, due, undo, meta = (env.open_db(name, create=True) for name in _DATABASES)
        return StoreEnvironment(env, data, due, undo, meta, _identity(path), os.getpid())
    except BaseException:
        env.close()
        raise


def _size(path: Path) -> int | None:
    try:
        return (path / "data.mdb").stat().st_size
    except FileNotFoundError:
        return None


def _identity(path: Path) -> tuple[int, int, int, int]:
    data, lock = (path / "data.mdb").stat(), (path / "lock.mdb").stat()
    return data.st_dev, data.st_ino, lock.st_dev, lock.st_ino


def _close(environment: StoreEnvironment | None) -> None:
    if environment is not None:
        environment.env.close()
