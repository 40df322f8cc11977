"""What can go wrong with a state store, by what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from tidelog.jobs.errors import JobError


class StateError(JobError):
    """A function used its state wrongly. The text names job, space and key, and the remedy."""


class StateValueError(StateError):
    """A key or a value that can't be stored: a matter of the rows that it was made of."""


class StoreError(Exception):
    """A store did not do what it was asked. Nothing of it was done."""


class StoreLockedError(StoreError):
    """Another process, or another task of this one, has the store open."""


class StoreUnusableError(StoreError):
    """What is there can't be trusted: ``Store.create`` makes a new one in its place, and the state is recovered."""


class StoreFullError(StoreError):
    """The disk, or the largest size of a store, is used up. The store is as it was before."""


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Errors of LMDB and the system as those of this module."""
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
