"""A consistent copy of a store while tasks go on with it, for snapshots.

It is made by a process of its own that holds no lock: one read transaction of LMDB, which sees one version.
The copy is compacted: it has no free pages. Of the store's own process it asks nothing; while it is made, pages
that tasks give up are not used again, so the store's file grows by what they write meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec

from tidelog.jobs.store.errors import StoreUnusableError, reported
from tidelog.jobs.store.store import FORMAT, StoreMeta


@contextmanager
def opened(path: Path) -> Iterator[tuple[lmdb.Environment, lmdb.Transaction[bytes], StoreMeta]]:
    """A store in a read transaction, and what it says of itself. Not for a process that has the store open itself.

    StoreUnusableError where there is none, or an unfinished or unknown one.
    """
    if not (path / "data.mdb").exists():
        raise StoreUnusableError(f"{path} is no state store")
    with reported(path):
        env = lmdb.open(str(path), map_size=0, max_dbs=4, readonly=True, readahead=False)
        try:
            env.reader_check()  # those who were killed hold no pages back
            db = env.open_db(b"meta", create=False)
            with env.begin() as txn:
                raw = txn.get(b"store", db=db)
                if raw is None:
                    raise StoreUnusableError(f"{path} is an unfinished state store")
                try:
                    meta = msgspec.msgpack.decode(raw, type=StoreMeta)
                except msgspec.MsgspecError as error:
                    raise StoreUnusableError(f"{path} is damaged, or of a newer format: {error}") from None
                if meta.format != FORMAT:
                    raise StoreUnusableError(f"{path} has format {meta.format}, and this program knows {FORMAT}")
                yield env, txn, meta
        finally:
            env.close()


def copy_store(path: Path, target: Path) -> StoreMeta:
    """Copy the store in the directory ``path`` to ``data.mdb`` in ``target``, an empty directory.

    Returns what the copy says: ``current``, which may be an epoch that is never published, and ``previous``, to which
    ``Store.undo`` brings a store that was made of the copy. StoreUnusableError if there is no store, StoreFullError if
    the target has no room.
    """
    with opened(path) as (env, txn, meta):
        env.copy(str(target), compact=True, txn=txn)
        return meta
