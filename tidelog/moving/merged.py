"""Merges two ordered lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from tidelog.client.entries import SEQ_MAX, StreamId

T = TypeVar("T")
END: Final = StreamId(SEQ_MAX + 1)  # after every ID


def merged(
    left: Iterable[T], right: Iterable[T], id_of: Callable[[T], StreamId]
) -> Iterator[tuple[T | None, T | None]]:  # fmt: skip
    """Yield pairs with the same ID, in order; None if a list lacks it. Both lists are read to their ends."""
    lefts, rights = _with_ids(left, id_of), _with_ids(right, id_of)
    one, one_id = next(lefts)
    other, other_id = next(rights)
    while one is not None or other is not None:
        if one_id == other_id:
            yield one, other
            one, one_id = next(lefts)
            other, other_id = next(rights)
        elif one_id < other_id:
            yield one, None
            one, one_id = next(lefts)
        else:
            yield None, other
            other, other_id = next(rights)


def _with_ids(rows: Iterable[T], id_of: Callable[[T], StreamId]) -> Iterator[tuple[T | None, StreamId]]:
    for row in rows:
        yield row, id_of(row)
    while True:
        yield None, END
