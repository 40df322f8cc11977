"""Direct reads: the entries that are in history objects are read from there, and all others from the server.

Rule 1: the rows of a read, and its errors for lost entries, do not depend on where they are read.
Rule 2: ``history=auto`` uses the objects if the driver can read them. A task that can't, or finds an object damaged,
        logs this and continues at the server, which verifies that it has all of these entries.
Rule 3: ``history=direct`` fails instead, with the name of the file and the range. So no large read reaches the server
        by mistake. It reads from the server only what is not in objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.arrow.direct import history_pages
from tidelog.arrow.pages import Page, PageContent
from tidelog.client.entries import StreamId
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.history.planning import HistoryPiece
from tidelog.spark.offsets import OffsetRange, Offsets
from tidelog.spark.options import ReadOptions
from tidelog.spark.ranges import Piece, read_range
from tidelog.transport.leader import LeaderConnection


def placed(offsets: Offsets, pieces: list[tuple[OffsetRange, int]]) -> list[tuple[Piece, int]]:
    """Divide pieces into those that are read from objects and those from the server, with their numbers of entries.

    Raises HistoryError with ``history=direct``, if a history can't be read.
    """
    source = offsets.source
    if source.history == choice.SERVER or not pieces:
        return list(pieces)
    ends = {span.key: span.end for span, _ in pieces}  # the pieces of a stream are in order
    if source.history == choice.AUTO:
        pieces = offsets.counted(pieces)
        totals = dict.fromkeys(ends, 0)
        for span, number in pieces:
            totals[span.key] += number
        ends = {key: end for key, end in ends.items() if totals[key] >= choice.FEWEST}
    histories = offsets.histories.histories(ends)
    for problem in offsets.histories.problems.values():
        choice.report(problem, source.history)
    made: list[tuple[Piece, int]] = []
    for span, number in pieces:
        history = histories.get(span.key)
        try:
            piece = history.piece(span.after, span.end) if history is not None else None
            parts = list(history.divided(piece, source.max_bytes_per_task)) if history is not None and piece else []
        except HistoryError as error:
            choice.report(error, source.history)
            piece, parts = None, []
        if piece is None:
            made.append((span, number))
            continue
        made += [(part, part.entries) for part in parts]
        if piece.end < span.end:
            made.append((OffsetRange(span.key, piece.end, span.end), -1))
    return offsets.counted(made) if histories else made


def tasks_of(source: ReadOptions, pieces: list[tuple[Piece, int]]) -> list[list[Piece]]:
    """Return the pieces of each task: one, or the end of the objects with a few entries that follow at the server.

    A topic with many partitions would otherwise have twice as many tasks.
    """
    tasks: list[list[Piece]] = []
    limited = source.min_partitions is not None or source.max_records is not None
    for piece, number in pieces:
        before = tasks[-1][-1] if tasks else None
        follows = isinstance(before, HistoryPiece) and (before.key, before.end) == (piece.key, piece.after)
        if follows and isinstance(piece, OffsetRange) and not limited and 0 <= number < choice.FEWEST:
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
    return tasks


def read_pages_of(
    source: ReadOptions, servers: LeaderConnection, piece: Piece, replica: str, wanted: PageContent, size: int
) -> Iterator[Page]:
    """Yield the entries of a piece in pages. Raises as ``read_range``, and HistoryError with ``history=direct``."""
    if isinstance(piece, HistoryPiece):
        after: StreamId = piece.after
        try:
            for page in history_pages(piece, wanted, size):
                yield page
                after = StreamId.parse(page.last)
            return
        except HistoryError as error:
            choice.report(error, source.history)
        if after >= piece.end:
            return
        piece = OffsetRange(piece.key, after, piece.end)
    yield from read_range(source, servers, piece, replica, wanted, size)

