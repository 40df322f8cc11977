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
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None or other is not None:
        one_id = END if one is None else id_of(one)
        other_id = END if other is None else id_of(other)
        yield (one if one_id <= other_id else None), (other if other_id <= one_id else None)
        if one_id <= other_id:
            one = next(lefts, None)
        if other_id <= one_id:
            other = next(rights, None)
