"""LMDB environments, which a process keeps open between tasks: opening one takes longer than a small commit.

Rule 1: An environment is used only by the holder of its store's lock (``locks``).
Rule 2: An environment belongs to its files, not to their path. If the files were replaced, it is reopened.
Rule 3: A truncated file is not mapped (SIGBUS): the file must have at least its recorded size.
Rule 4: An environment inherited by a fork is closed and reopened. Idle environments have no open transaction: ending
        one in the child would end it for its parent. A child must not use a store that is open.
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
SIZES: Final = (1 << 38, 1 << 36, 1 << 34, 1 << 32, 1 << 30)  # bytes of the memory map: the first size that works
MOST_IDLE: Final = 32  # idle environments at most
_DATABASES: Final = (b"data", b"due", b"undo", b"meta")

idle_environments: OrderedDict[Path, StoreEnvironment] = OrderedDict()
_guard = threading.Lock()


def boot_id() -> str:
    """Return the boot ID of the machine; empty if the system has none, and files are synced instead."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, eq=False)
class StoreEnvironment:
    """An open environment and its databases."""

    env: lmdb.Environment
    data: lmdb._Database  # stored key: record
    due: lmdb._Database  # deadline u64 | stored key: empty
    undo: lmdb._Database  # stored key: its record before the last epoch; empty if there was none
    meta: lmdb._Database
    identity: tuple[int, int, int, int]
    pid: int


def acquire(path: Path, least: int) -> StoreEnvironment:
    """Return the environment of the directory, whose file must have at least ``least`` bytes or not exist.

    Raises StoreUnusableError if the directory contains something else, and StoreFullError if the system has no room.
    """
    with reported(path):
        with _guard:
            idle = idle_environments.pop(path, None)
        size = _size(path)
        if size is not None and size < max(least, 2 * 4096):
            _close(idle)
            raise StoreUnusableError(f"{path} is truncated: {size} bytes of {max(least, 8192)}")
        if idle is not None and size is not None and idle.pid == os.getpid() and idle.identity == _identity(path):
            return idle
        _close(idle)
        return _opened(path, size is None)


def release(path: Path, environment: StoreEnvironment) -> None:
    """Keep an environment open for the next task."""
    with _guard:
        before = idle_environments.pop(path, None)
        late = [
            idle_environments.pop(other) for other in list(idle_environments) if not _size(other)
        ]  # deleted: closing frees the space
        idle_environments[path] = environment
        late += [idle_environments.popitem(last=False)[1]] if len(idle_environments) > MOST_IDLE else []
    for one in (before, *late):
        _close(one)


def forget(path: Path) -> None:
    """Close the environment of a directory that will be replaced."""
    with _guard:
        idle = idle_environments.pop(path, None)
    _close(idle)


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
