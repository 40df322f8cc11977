"""Reads entries from history objects in pages, as ``tidelog.arrow.reading`` reads them from the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tidelog.arrow.pages import Page, PageContent, gather
from tidelog.client import calls
from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.history.location import ManyDeletedError
from tidelog.history.planning import HistoryPiece, HistoryPlanner
from tidelog.history.reading import read_piece
from tidelog.transport.connection import PAGE_BYTES
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

ZERO: Final = StreamId(0, 0)
_BOUND: Final = re.compile(r"(\(?)(\d+)(?:\.(\d+))?")


def history_pages(piece: HistoryPiece, wanted: PageContent, size: int, most: int | None = None) -> Iterator[Page]:
    """Yield the entries of a piece in pages of at most ``size``, and at most ``most`` entries. Raises HistoryError."""
    made = gather(wanted)
    received, left = 0, piece.entries if most is None else most
    for data in read_piece(piece, most):
        made.feed(data)  # type: ignore[arg-type]  # both builders accept any buffer
        received += len(data)
        while (there := made.parse(min(size, left))) and (there == min(size, left) or received > PAGE_BYTES):
            yield made.page()
            received = 0
            left -= there
    if there := made.parse(min(size, left)):
        yield made.page()


def piece_of(
    servers: LeaderConnection, key: str, start: str, end: str, last: StreamId, history: str
) -> tuple[HistoryPiece | None, bool]:
    """Return the part of a range that is in objects and is to be read from there, from its beginning on, and whether it
    is the whole range.

    ``start``, ``end``: as for TRANGE. ``last``: the last ID of the stream. ``history``: see ``choice``. Raises
    HistoryError if ``direct`` is impossible, and errors of ``LeaderConnection.ask``.
    """
    after, until = _bound(start, before=True), last if end == "+" else _bound(end, before=False)
    if history == choice.SERVER or after is None or until is None:
        return None, False
    if history == choice.AUTO:
        (reply,) = servers.ask(calls.tcount(key, start, end))
        if isinstance(reply, ReplyError) or reply < choice.FEWEST:  # without permission, TRANGE decides
            return None, False
    planner = HistoryPlanner(servers.ask)
    try:
        until = min(until, last)
        found = planner.histories({key: until}).get(key)
        if key in planner.problems:
            raise planner.problems[key]
        piece = None if found is None else found.piece(after, until)
        return piece, piece is not None and piece.end == until
    except (HistoryError, ManyDeletedError) as error:
        choice.report(error, history)
        return None, False


def _bound(text: str, before: bool) -> StreamId | None:
    """Return the ID before a start, or an end; None for a form that only the server knows."""
    if text == "-":
        return ZERO
    found = _BOUND.fullmatch(text)
    if found is None or (found[1] and (found[3] is None or not before)):
        return None
    bound = StreamId(int(found[2]), int(found[3]) if found[3] else 0 if before else SEQ_MAX)
    if not before or found[1] or bound == ZERO:
        return bound
    return StreamId(bound.ms, bound.seq - 1) if bound.seq else StreamId(bound.ms - 1, SEQ_MAX)
