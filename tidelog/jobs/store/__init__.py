"""The state store of jobs: what one partition of a job remembers, on one machine's disk.

store         ``StateStore``: one partition's data and version in LMDB; commit, undo
changes       ``StateChanges``: what an epoch has changed so far, over what is stored; savepoints
memory        ``MemoryStore``: the same without a disk, for tests of functions
records       the bytes of a stored value; the digest of an epoch
keys          the bytes of keys and of names of spaces, in bulk
values        values of a type as records and back, in bulk
transactions  what a commit does inside LMDB's transactions
environments  LMDB environments, kept open by the process from task to task
copying       a consistent copy while tasks go on
locks         one process at a time for a store
statedir      where states are on a machine
cleanup       what generations that are over have left
errors        what can go wrong
"""

from tidelog.jobs.store.changes import StateChanges
from tidelog.jobs.store.copying import copy_store
from tidelog.jobs.store.errors import (
    StateError,
    StateValueError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnusableError,
)
from tidelog.jobs.store.memory import MemoryStore
from tidelog.jobs.store.store import StateStore, StateVersion, VersionInfo

__all__ = [
    "MemoryStore", "StateChanges", "StateError", "StateStore", "StateValueError", "StateVersion", "StoreError",
    "StoreFullError", "StoreLockedError", "StoreUnusableError", "VersionInfo", "copy_store",
]  # fmt: skip
