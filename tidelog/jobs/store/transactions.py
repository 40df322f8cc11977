"""The writes of a commit inside LMDB transactions: records, pre-images, and the index by deadline.

LMDB holds the pages that a transaction has changed in memory until its end: 4096 bytes for a small record in a large
store. An epoch that changes more pages than the memory allows is therefore written in several transactions, and the
store is marked as torn between them; ``store`` rolls back an epoch that was interrupted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import lmdb

from tidelog.jobs.store.environments import StoreEnvironment
from tidelog.jobs.store.records import deadline_of

Txn: TypeAlias = "lmdb.Transaction[bytes]"
Record: TypeAlias = bytes | None


class MutationPart(NamedTuple):
    """Some of an epoch's mutations, in the order of their keys."""

    keys: Sequence[bytes]
    records: Sequence[Record]  # None: delete


def parts(
    txn: Txn, env: StoreEnvironment, keys: Sequence[bytes], records: Sequence[Record], memory: int
) -> Iterator[MutationPart]:
    """Divide mutations into parts, at least one, that each take at most about ``memory`` bytes of changed pages."""
    stat = txn.stat(env.data)
    pages = min(len(keys), stat["leaf_pages"] + len(keys) // 32)  # of small records
    size = pages * stat["psize"] + sum(map(len, filter(None, records)))
    count = max(1, min(len(keys), -(-size // memory)))
    step = max(1, -(-len(keys) // count))
    for at in range(0, max(1, len(keys)), step):
        yield MutationPart(keys[at : at + step], records[at : at + step])


def apply(txn: Txn, env: StoreEnvironment, part: MutationPart) -> None:
    """Write and delete records."""
    pairs = list(zip(part.keys, part.records, strict=True))
    if None in part.records:
        for key, record in pairs:
            if record is None:
                txn.delete(key, db=env.data)
        pairs = [(key, record) for key, record in pairs if record is not None]
    put(txn, env.data, pairs)  # type: ignore[arg-type]


def store_pre_images(txn: Txn, env: StoreEnvironment, keys: Sequence[bytes], before: Sequence[Record]) -> None:
    """Replace the pre-images of the previous epoch by those of this one. ``keys`` are in ascending order."""
    txn.drop(env.undo, delete=False)
    put(txn, env.undo, list(zip(keys, [old or b"" for old in before], strict=True)), append=True)


def pre_images(txn: Txn, env: StoreEnvironment) -> tuple[list[bytes], list[Record]]:
    """Return the keys that the last epoch changed, in order, and their records before it."""
    pairs = list(txn.cursor(env.undo))
    return [key for key, _ in pairs], [old or None for _, old in pairs]


def put(txn: Txn, db: lmdb._Database, pairs: list[tuple[bytes, bytes]], append: bool = False) -> None:
    if pairs:
        txn.cursor(db).putmulti(pairs, append=append)


def index(
    txn: Txn, env: StoreEnvironment, keys: Sequence[bytes], records: Sequence[Record], before: Sequence[Record]
) -> None:
    """Add an entry to ``due`` for each new record with a deadline, unless the previous record had one as early."""
    entries = []
    for key, record, old in zip(keys, records, before, strict=True):
        deadline = deadline_of(record) if record else None
        if deadline is not None:
            known = deadline_of(old) if old else None
            if known is None or known > deadline:
                entries.append((deadline + key, b""))
    put(txn, env.due, sorted(entries))


def remove_expired(txn: Txn, env: StoreEnvironment, horizon: bytes, limit: int) -> None:
    """Check ``limit`` entries of ``due`` up to a time: remove expired records, move entries with later deadlines."""
    entries: list[bytes] = []
    for entry in txn.cursor(env.due).iternext(values=False):
        if entry[:8] > horizon or len(entries) >= limit:
            break
        entries.append(entry)
    moved = []
    for entry in entries:
        key = entry[8:]
        record = txn.get(key, db=env.data)
        deadline = deadline_of(record) if record else None
        if deadline is not None and deadline <= horizon:
            txn.delete(key, db=env.data)
        elif deadline is not None:
            moved.append((deadline + key, b""))
        txn.delete(entry, db=env.due)
    put(txn, env.due, sorted(moved))
