"""A copy of a store, as a snapshot has it."""

from __future__ import annotations

from pathlib import Path

from tidelog.jobs.store.copying import opened
from tidelog.jobs.store.store import StoreMeta


def copy_store(path: Path, target: Path) -> StoreMeta:
    """Copy what a read transaction sees of the store into an empty directory."""
    with opened(path) as (env, txn, meta):
        env.copy(str(target), compact=True, txn=txn)
        return meta
