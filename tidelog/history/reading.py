"""Reads the entries of a piece from objects, in the form in which TRANGE sends them.

Adjacent sections are read with one request of up to REQUEST bytes. While one range is decoded, AHEAD others are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final

import zstandard

from tidelog.history.files import OBJECTS, HistoryFiles
from tidelog.history.index import Frame, IndexedSection, damaged, frame_of, sections
from tidelog.history.manifest import HistoryPart
from tidelog.history.planning import HistoryPiece
from tidelog.history.sections import wire_of

REQUEST: Final = 4 << 20  # bytes of one request; a larger section is read alone
AHEAD: Final = 2  # requests

Request = tuple[HistoryPart, list[IndexedSection]]  # adjacent sections of an object


def read_piece(piece: HistoryPiece, most: int | None = None) -> Iterator[bytes | bytearray]:
    """Yield the entries of a piece in RESP, those of one section at a time. Raises HistoryError.

    ``most``: the number of entries that the caller needs, so that no sections behind them are requested.
    """
    files, stream = HistoryFiles(piece.url, piece.seconds), piece.key.encode()
    decompressor = zstandard.ZstdDecompressor()
    requests = _requests(files, piece, most)
    with ThreadPoolExecutor(AHEAD, "tidelog-history") as pool:
        reads: deque[tuple[Request, Future[bytes]]] = deque()
        try:
            while True:
                for request in islice(requests, AHEAD + 1 - len(reads)):
                    reads.append((request, pool.submit(_read, files, request)))
                if not reads:
                    return
                (part, records), content = reads.popleft()
                data = memoryview(content.result())
                for record in records:
                    start = record.offset - records[0].offset
                    section = data[start : start + record.size]
                    frame = frame_of(files, part, stream, record, section, decompressor)
                    yield _entries(files, piece, part, frame)
        finally:
            for _, content in reads:
                content.cancel()


def _requests(files: HistoryFiles, piece: HistoryPiece, most: int | None) -> Iterator[Request]:
    left = most
    for part in piece.parts:
        wanted: list[IndexedSection] = []
        size = 0
        for record in sections(files, part, piece.key.encode(), piece.first_ord):
            if record.last_id <= piece.after or record.first_id > piece.end or record.end_ord <= piece.first_ord:
                continue
            if wanted and size + record.size > REQUEST:
                yield part, wanted
                wanted, size = [], 0
            wanted.append(record)
            size += record.size
            if left is not None and record.first_id > piece.after:
                left -= record.entries
                if left <= 0:
                    yield part, wanted
                    return
        if wanted:
            yield part, wanted


def _read(files: HistoryFiles, request: Request) -> bytes:
    part, records = request
    return files.read(f"{OBJECTS}/{part.name}", records[0].offset, records[-1].offset + records[-1].size)


def _entries(files: HistoryFiles, piece: HistoryPiece, part: HistoryPart, frame: Frame) -> bytes | bytearray:
    try:
        return wire_of(frame, piece.after, piece.end, piece.first_ord, piece.deleted)
    except ValueError as error:
        first, last = frame.record.first_id, frame.record.last_id
        raise damaged(files, part, piece.key.encode(), first, last, str(error)) from error
