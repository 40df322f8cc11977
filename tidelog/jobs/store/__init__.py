"""The state store of jobs: the state of one partition of a job on one machine's disk.

    store         ``StateStore``: data and version of one partition in LMDB; commit and undo
    changes       ``StateChanges``: the uncommitted changes of an epoch, with savepoints
    memory        ``MemoryStore``: an in-memory store, for testing functions
    records       the bytes of a stored value; the digest of an epoch
    keys          the bytes of keys and of the names of spaces, in bulk
    values        bulk conversion of values of one type to records
    transactions  the writes of a commit inside LMDB transactions
    environments  LMDB environments, which a process keeps open between tasks
    copying       a consistent copy of a store while tasks continue
    locks         the lock that lets only one process use a store
    statedir      the directory of states on a machine
    cleanup       removes the states of former generations
    errors        the errors of state stores
"""

from tidelog.jobs.store.changes import StateChanges
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
    "StoreFullError", "StoreLockedError", "StoreUnusableError", "VersionInfo",
]  # fmt: skip
