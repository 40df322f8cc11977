"""The part of a stream that the filters of a query need.

The times of a stream are divided into pieces. Arrow simplifies the filter for each piece ("_ts is from here to there")
and drops those for which it can't be true. The first and the last remaining piece are divided again. So any filter
works that Arrow understands, and none has to be parsed here.

Rule 1: a piece is dropped only if no entry of it passes the filter. The filter is applied to the rows as well.
Rule 2: an ID whose time exceeds the range of a timestamp has a null ``_ts``. These entries are a piece of their own.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from tidelog.arrow.pages import MICROSECONDS

PIECES: Final = 64
ROUNDS: Final = 3  # then a piece is a quarter of a millionth of the time of the stream
LAST_MS: Final = ((1 << 63) - 1) // 1000  # the largest time of an ID that a timestamp can represent


def pruned(
    filter: pc.Expression | None, schema: pa.Schema, key: str, partition: int | None, first: int, last: int  # noqa: A002
) -> tuple[int, int] | None:  # fmt: skip
    """Return the first and last millisecond of a stream that a filter needs; None: it needs nothing of the stream.

    ``first`` and ``last``: the times of the first and the last entry, in ms since 1970.
    """
    if filter is None:
        return first, last
    own = pc.field("_key") == key
    if partition is not None:
        own &= pc.field("_partition") == pa.scalar(partition, pa.int32())
    low, high = first, min(last, LAST_MS)
    remaining: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        if low > high:
            break
        pieces = _pieces(low, high)
        at = _possible(filter, schema, [own & _within(*piece) for piece in pieces])
        remaining = [pieces[number] for number in at]
        if not remaining:
            break
        low, high = remaining[0][0], remaining[-1][1]
    needs_null = last > LAST_MS and bool(_possible(filter, schema, [own & pc.field("_ts").is_null()]))
    if not remaining:
        return (max(first, LAST_MS + 1), last) if needs_null else None
    return low, last if needs_null else high


def _pieces(low: int, high: int) -> list[tuple[int, int]]:
    """Divide the milliseconds from ``low`` to ``high`` into pieces, both ends included."""
    step = max(1, -(-(high - low + 1) // PIECES))
    return [(start, min(high, start + step - 1)) for start in range(low, high + 1, step)]


def _within(low: int, high: int) -> pc.Expression:
    return (pc.field("_ts") >= pa.scalar(low * 1000, MICROSECONDS)) & (
        pc.field("_ts") <= pa.scalar(high * 1000, MICROSECONDS)
    )


def _possible(filter: pc.Expression, schema: pa.Schema, pieces: list[pc.Expression]) -> list[int]:  # noqa: A002
    """Return the pieces for which the filter can be true."""
    names = [str(number) for number in range(len(pieces))]
    dataset = ds.FileSystemDataset.from_paths(  # the files do not exist: only the guarantees are used
        names, schema=schema, format=ds.IpcFileFormat(), filesystem=LocalFileSystem(), partitions=pieces
    )
    return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter=filter))
