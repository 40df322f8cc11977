"""``State``: what a batch job's function remembers, as the function sees it.

Rule 1: a function that uses nothing but its arguments leaves the same state when it is called again with the same
        batch. Time is the batch's: values end by ``batch.now_ms``.
Rule 2: what is stored of another type, a key that can't be stored, a value that is not of the type: each is an error
        that names job, space and key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from tidelog.jobs.store.changes import StateChanges
from tidelog.jobs.store.errors import StateError, StateValueError
from tidelog.jobs.store.keys import Keys, prefix_of, stored_keys
from tidelog.jobs.store.memory import MemoryStore
from tidelog.jobs.store.values import ValueCodec, Values, as_list

V = TypeVar("V")
W = TypeVar("W")

_SLICE: Final = 1000  # records of a scan that are decoded together
_WRONG: Final = (TypeError, ValueError, OverflowError, msgspec.MsgspecError)


class State(Generic[V]):
    """Values of one type by key. Calls take and return lists: one call for a batch is many times faster than one a row.

    Keys are str, int, bytes or UUID, in a list or an array of pyarrow or numpy. A str is its UTF-8, an int its decimal
    text: 1 and "1" are one key. Values are bytes, str, int, float or what msgspec can encode, as the job declares.
    """

    def __init__(self, changes: StateChanges, type_: type[V], *, job: str, space: str = "") -> None:
        """For the library; functions get theirs, and tests take ``in_memory``."""
        self._changes = changes
        self._job = job
        self._where = f"job {job!r}, state" + (f", space {space!r}" if space else "")
        self._prefix = prefix_of(space, self._where)
        try:
            self._codec = ValueCodec(type_)
        except TypeError as error:
            raise StateError(f"{self._where}: no values of type {type_!r}: {error}") from None

    def get_many(self, keys: Keys) -> list[V | None]:
        """The value of each key, in order; None where there is none."""
        stored = stored_keys(keys, self._prefix, self._where)
        records = self._changes.get(stored)
        if None not in records:
            return list(self._decoded(stored, records))  # type: ignore[arg-type]
        there = [(key, record) for key, record in zip(stored, records, strict=True) if record is not None]
        values = iter(self._decoded([key for key, _ in there], [record for _, record in there]))
        return [None if record is None else next(values) for record in records]

    def put_many(self, keys: Keys, values: Values, ttl: timedelta | float | None = None) -> None:
        """Remember a value for each key. Of a key that is named twice, the last value counts.

        ttl: seconds (or a timedelta) from ``batch.now_ms`` after which the values are gone; None: they stay.
        A later put decides anew. StateError for other keys, values and lengths than declared.
        """
        stored = stored_keys(keys, self._prefix, self._where)
        given = as_list(values)
        if len(stored) != len(given):
            raise StateError(f"{self._where}: {len(stored)} keys with {len(given)} values")
        self._changes.put(stored, self._encoded(stored, given), self._ttl_ms(ttl))

    def delete_many(self, keys: Keys) -> None:
        """Forget the keys. Those that are not there don't matter."""
        self._changes.delete(stored_keys(keys, self._prefix, self._where))

    def scan(self, prefix: bytes | str = b"") -> Iterator[tuple[bytes, V]]:
        """Keys that begin with ``prefix`` and their values, in the order of the keys' bytes, as they are now."""
        start = self._prefix + (prefix.encode() if isinstance(prefix, str) else prefix)
        return self._scanned(self._changes.scan(start))

    def space(self, name: str, type: type[W] = bytes) -> State[W]:  # type: ignore[assignment]  # noqa: A002
        """A name space: its keys are others than those of the state, and of other spaces.

        name: 1 to 64 letters, digits, '_', '-' and '.'. type: of its values; always the same for one name.
        """
        if not name:
            raise StateError(f"{self._where}: a space needs a name")
        return State(self._changes, type, job=self._job, space=name)

    def _scanned(self, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, V]]:
        skip = len(self._prefix)
        while some := list(islice(found, _SLICE)):
            keys = [key for key, _ in some]
            values = self._decoded(keys, [record for _, record in some])
            yield from zip([key[skip:] for key in keys], values, strict=True)

    def _encoded(self, keys: Sequence[bytes], values: list[Any]) -> list[bytes]:
        if not values:
            return []
        try:
            return self._codec.encode(values)
        except _WRONG:
            at = self._codec.first_wrong(values, self._codec.encode)
            value, key = values[at], keys[at][len(self._prefix) :]
            remedy = "delete_many forgets a key" if value is None else "declare the type with @job(state=...) or space"
            text = f"{value!r:.80} for the key {key!r} is no {self._codec.name}: {remedy}"
            raise StateValueError(f"{self._where}: {text}") from None

    def _decoded(self, keys: Sequence[bytes], records: list[bytes]) -> list[V]:
        if not records:
            return []
        try:
            return self._codec.decode(records)
        except _WRONG:
            at = self._codec.first_wrong(records, self._codec.decode)
            key = keys[at][len(self._prefix) :]
            try:
                self._codec.decode([records[at]])
            except _WRONG as error:
                why = str(error)
            raise StateError(
                f"{self._where}: the value of {key!r} is no {self._codec.name}: {why}; read it as the type with"
                " which it was put, convert it, or use another space"
            ) from None

    def _ttl_ms(self, ttl: timedelta | float | None) -> int | None:
        if ttl is None:
            return None
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if not seconds > 0 or seconds == float("inf"):
            raise StateError(f"{self._where}: ttl is more than 0 seconds, or None: {ttl!r}")
        return max(1, round(seconds * 1000))


def in_memory(type_: type[V], *, job: str = "test", now_ms: int = 0, store: MemoryStore | None = None) -> State[V]:
    """A state without a disk, for tests of a function.

    For several batches, keep a MemoryStore: ``store.begin(now_ms)`` gives the Changes for a State, ``store.commit``
    keeps them for the next.
    """
    return State((store or MemoryStore()).begin(now_ms), type_, job=job)
