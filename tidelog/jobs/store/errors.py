"""The errors of state stores; each class has a different remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from tidelog.jobs.errors import JobError


class StateError(JobError):
    """A function used its state incorrectly. The text names job, space and key, and the remedy."""


class StateValueError(StateError):
    """A key or a value that can't be stored, because of the rows from which it was computed."""


class StoreError(Exception):
    """A store operation failed and had no effect."""


class StoreLockedError(StoreError):
    """Another process, or another task of this one, has the store open."""


class StoreUnusableError(StoreError):
    """The store can't be trusted. ``StateStore.create`` replaces it, and the state is recovered."""


class StoreFullError(StoreError):
    """The disk is full, or the store has reached its largest size. The store is unchanged."""


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Convert errors of LMDB and the system to those of this module."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise StoreFullError(f"{path} has reached the largest size of a store: {error}; use more partitions") from error
    except (lmdb.DiskError, OSError) as error:
        raise StoreFullError(f"{path} can't be written: {error}") from error
    except lmdb.Error as error:
        if "No space left" in str(error) or "Input/output error" in str(error):
            raise StoreFullError(f"{path} can't be written: {error}") from error
        raise StoreUnusableError(f"{path} can't be used: {error}") from error
