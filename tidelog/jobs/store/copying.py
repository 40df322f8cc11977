"""A consistent copy of a store while tasks continue, for snapshots.

A separate process creates it without a lock, in one read transaction of LMDB, which sees one version. The copy is
compacted: it has no free pages. The store's own process is not involved. During the copy, LMDB does not reuse pages
that tasks free, so the store's file grows by what they write.
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
    """Open a store in a read transaction and yield its metadata. Not for a process that has the store open itself.

    Raises StoreUnusableError if there is no store, or an unfinished or unknown one.
    """
    if not (path / "data.mdb").exists():
        raise StoreUnusableError(f"{path} is not a state store")
    with reported(path):
        env = lmdb.open(str(path), map_size=0, max_dbs=4, readonly=True, readahead=False)
        try:
            env.reader_check()  # so that killed readers do not retain pages
            db = env.open_db(b"meta", create=False)
            with env.begin() as txn:
                raw = txn.get(b"store", db=db)
                if raw is None:
                    raise StoreUnusableError(f"{path} is an unfinished state store")
                try:
                    meta = msgspec.msgpack.decode(raw, type=StoreMeta)
                except msgspec.MsgspecError as error:
                    raise StoreUnusableError(f"{path} is damaged or has a newer format: {error}") from None
                if meta.format != FORMAT:
                    raise StoreUnusableError(f"{path} has format {meta.format}, but this program supports {FORMAT}")
                yield env, txn, meta
        finally:
            env.close()
