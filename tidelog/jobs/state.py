"""``State``: the state of a batch job, as its function uses it.

Rule 1: A function that uses only its arguments leaves the same state when it is called again with the same batch. Time
        is the batch's: values expire by ``batch.now_ms``.
Rule 2: A stored value of another type, a key that can't be stored, and a value that is not of the declared type each
        raise an error that names job, space and key.
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
from tidelog.jobs.store.values import ValueCodec, Values, as_list

V = TypeVar("V")
W = TypeVar("W")

_SLICE: Final = 1000  # records that a scan decodes together
_WRONG: Final = (TypeError, ValueError, OverflowError, msgspec.MsgspecError)


class State(Generic[V]):
    """Values of one type by key. Methods take and return lists: one call for a batch is many times faster than one per
    row.

    Keys are str, int, bytes or UUID, in a list or an array of pyarrow or numpy. A str is encoded as UTF-8, an int as
    decimal text: 1 and "1" are the same key. Values are bytes, str, int, float or any type msgspec can encode, as the
    job declares.
    """

    def __init__(self, changes: StateChanges, type_: type[V], *, job: str, space: str = "") -> None:
        """Create a state. For internal use: functions get theirs as an argument."""
        self._changes = changes
        self._job = job
        self._where = f"job {job!r}, state" + (f", space {space!r}" if space else "")
        self._prefix = prefix_of(space, self._where)
        try:
            self._codec = ValueCodec(type_)
        except TypeError as error:
            raise StateError(f"{self._where}: values of type {type_!r} cannot be stored: {error}") from None

    def get_many(self, keys: Keys) -> list[V | None]:
        """Return the value of each key, in order; None if there is none."""
        stored = stored_keys(keys, self._prefix, self._where)
        records = self._changes.get(stored)
        if None not in records:
            return list(self._decoded(stored, records))  # type: ignore[arg-type]
        there = [(key, record) for key, record in zip(stored, records, strict=True) if record is not None]
        values = iter(self._decoded([key for key, _ in there], [record for _, record in there]))
        return [None if record is None else next(values) for record in records]

    def put_many(self, keys: Keys, values: Values, ttl: timedelta | float | None = None) -> None:
        """Store a value for each key. If a key occurs twice, the last value counts.

        ttl: seconds (or a timedelta) from ``batch.now_ms`` after which the values expire; None: never. A later put
        replaces the expiry as well. Raises StateError for keys, values and lengths that do not fit.
        """
        stored = stored_keys(keys, self._prefix, self._where)
        items = as_list(values)
        if len(stored) != len(items):
            raise StateError(f"{self._where}: {len(stored)} keys with {len(items)} values")
        self._changes.put(stored, self._encoded(stored, items), self._ttl_ms(ttl))

    def delete_many(self, keys: Keys) -> None:
        """Delete the keys. Missing keys are ignored."""
        self._changes.delete(stored_keys(keys, self._prefix, self._where))

    def scan(self, prefix: bytes | str = b"") -> Iterator[tuple[bytes, V]]:
        """Iterate over the keys with this prefix and their values, in the order of the key bytes, as of this call."""
        start = self._prefix + (prefix.encode() if isinstance(prefix, str) else prefix)
        return self._scanned(self._changes.scan(start))

    def space(self, name: str, type: type[W] = bytes) -> State[W]:  # type: ignore[assignment]  # noqa: A002
        """Return a name space: its keys are separate from those of the state and of other spaces.

        name: 1 to 64 letters, digits, '_', '-' and '.'. type: of its values; must always be the same for one name.
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
            at, _ = self._codec.first_wrong(values, self._codec.encode)
            value, key = values[at], keys[at][len(self._prefix) :]
            remedy = "delete_many deletes a key" if value is None else "declare the type with @job(state=...) or space"
            text = f"{value!r:.80} for the key {key!r} is not a {self._codec.name}: {remedy}"
            raise StateValueError(f"{self._where}: {text}") from None

    def _decoded(self, keys: Sequence[bytes], records: list[bytes]) -> list[V]:
        if not records:
            return []
        try:
            return self._codec.decode(records)
        except _WRONG:
            at, why = self._codec.first_wrong(records, self._codec.decode)
            key = keys[at][len(self._prefix) :]
            raise StateError(
                f"{self._where}: the value of {key!r} is not a {self._codec.name}: {why}; read it with the type"
                " with which it was stored, convert it, or use another space"
            ) from None

    def _ttl_ms(self, ttl: timedelta | float | None) -> int | None:
        if ttl is None:
            return None
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if not seconds > 0 or seconds == float("inf"):
            raise StateError(f"{self._where}: ttl must be more than 0 seconds, or None: {ttl!r}")
        return max(1, round(seconds * 1000))
