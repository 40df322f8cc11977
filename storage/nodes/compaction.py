"""Compacted nodes: nodes with few living entries, in which the deleted entries are stored without their bytes.

A compacted node has the same entries at the same positions with the same IDs; deleted entries have 0 bytes. Ordinals
and IDs are therefore found as before, and a node that was opened before the compaction remains valid. The format of
blobs (see ``node``) did not change, so every version can read it.

Rule 1: deleted entries are never read, so their missing bytes have no effect. A snapshot of a time at which such an
entry was alive reads the store of that time, and does not use nodes that were opened later.
Rule 2: a node is compacted only if this halves its remaining size. All compactions of a node together therefore write
at most its original size, however often checkpoints run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import zstandard

from resp.errors import CorruptError
from storage.nodes.draft import Draft
from storage.nodes.node import Node, seal
from storage.nodes.packed import new_decompressor, open_packed


def compacted(
    node: bytes | Draft, alive: Sequence[tuple[int, int]], compressor: zstandard.ZstdCompressor,
    decompressor: zstandard.ZstdDecompressor | None = None,
) -> bytes | None:  # fmt: skip
    """Return the blob with only the bytes of entries in these ranges (start and stop, ascending); None if not
    worthwhile.

    Compressor and decompressor belong to the calling thread. Raises CorruptError if the blob is damaged or too short.
    """
    full = node.unpack() if isinstance(node, Draft) else open_packed(node, decompressor or new_decompressor()).unpack()
    ends = [0, *full.ends.tolist()]
    sizes = [0] * len(full)
    parts: list[bytes] = []
    for start, stop in alive:
        if stop > len(sizes):
            raise CorruptError("a node lacks entries")
        sizes[start:stop] = [ends[at + 1] - ends[at] for at in range(start, stop)]
        parts.append(full.slice(start, stop))
    if 2 * sum(sizes) > len(full.wire) or not full.wire:
        return None
    less = Node(full.base, full.ms, full.seq, array("I", list(accumulate(sizes))), b"".join(parts))
    blob = seal(less, compressor=compressor)
    if isinstance(node, bytes) and len(blob) >= len(node):  # the stored blob was coded
        return None
    if isinstance(node, Draft):
        node.sealed = len(blob)
    return blob
