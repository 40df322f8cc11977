"""Which files of a log to use if several contain the same records.

A merge writes a chunk with the records of others, and then removes the others (``logmerge``). It can be interrupted,
and a reader can list the target meanwhile. A log offset and a replication ID identify one sequence of bytes, so that
any choice of chunks without a gap has the same records.

Rule: a merged chunk is used if some of its parts are missing. While all of them exist, they are used, because the
merged one may be incomplete.
"""

from __future__ import annotations

from itertools import pairwise

from tidelog.backup.logchunks import LogChunk


def resolved(chunks: list[LogChunk]) -> tuple[list[LogChunk], list[LogChunk]]:
    """Return the chunks to use, in order, and the superfluous ones."""
    ordered = sorted(chunks, key=lambda chunk: (chunk.begin, -chunk.end, chunk.name))
    if all(one.end <= two.begin for one, two in pairwise(ordered)):
        return ordered, []
    superfluous: list[LogChunk] = []
    top: list[LogChunk] = []  # to use
    open_: list[tuple[LogChunk, list[LogChunk]]] = []  # chunks that contain the next one, with what is to use in them

    def close() -> None:
        chunk, parts = open_.pop()
        outer = open_[-1][1] if open_ else top
        if parts and _tile(chunk, parts):
            superfluous.append(chunk)
            outer += parts
        else:
            superfluous.extend(parts)
            outer.append(chunk)

    for chunk in ordered:
        while open_ and chunk.end > open_[-1][0].end:
            close()
        open_.append((chunk, []))
    while open_:
        close()
    return top, superfluous


def _tile(chunk: LogChunk, parts: list[LogChunk]) -> bool:
    """Return whether consecutive parts have all records of a chunk."""
    ends = (parts[0].begin, parts[-1].end) == (chunk.begin, chunk.end)
    return ends and all(two.begin <= one.end for one, two in pairwise(parts))
