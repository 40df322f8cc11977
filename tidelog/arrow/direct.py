"""Reads entries from history objects in pages, as ``tidelog.arrow.reading`` reads them from the server."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.arrow.pages import Page, PageContent, gather
from tidelog.history.planning import HistoryPiece
from tidelog.history.reading import read_piece
from tidelog.transport.connection import PAGE_BYTES


def history_pages(piece: HistoryPiece, wanted: PageContent, size: int) -> Iterator[Page]:
    """Yield the entries of a piece in pages of at most ``size``. Raises HistoryError."""
    made = gather(wanted)
    received = 0
    for data in read_piece(piece):
        made.feed(bytes(data))
        received += len(data)
        while (there := made.parse(size)) == size or (there and received > PAGE_BYTES):
            yield made.page()
            received = 0
    if made.parse(size):
        yield made.page()
