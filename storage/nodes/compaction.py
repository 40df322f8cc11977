"""Thinned nodes: of which few entries are alive, stored without the bytes of the others.

A thinned node has the same entries at the same places, with the same IDs; the dead ones are 0 bytes long. So ordinals
and IDs are found in it as before, and nothing that has opened the node in its first form is wrong. The form of blobs
(see ``node``) is the same: every version reads it.

Rule 1: nobody reads a dead entry, so nobody sees that its bytes are gone. A snapshot of a time at which it was alive
reads the store of that time, and no node that was opened since.
Rule 2: a node is rewritten only if that halves what is left of it. So all rewriting of a node writes no more than it
first held, however often checkpoints ask.
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
    """The blob with the bytes of the entries in these runs only (start and stop, ascending); None if that does not pay.

    Compressor and decompressor are the calling thread's own. Raises CorruptError if the blob is damaged, or has no such
    positions.
    """
    full = node.unpack() if isinstance(node, Draft) else open_packed(node, decompressor or new_decompressor()).unpack()
    ends = [0, *full.ends.tolist()]
    sizes = [0] * len(full)
    parts: list[bytes] = []
    for start, stop in alive:
        if stop > len(sizes):
            raise CorruptError("a node that lacks entries")
        sizes[start:stop] = [ends[at + 1] - ends[at] for at in range(start, stop)]
        parts.append(full.slice(start, stop))
    if 2 * sum(sizes) > len(full.wire) or not full.wire:
        return None
    less = Node(full.base, full.ms, full.seq, array("I", list(accumulate(sizes))), b"".join(parts))
    blob = seal(less, compressor=compressor)
    if isinstance(node, bytes) and len(blob) >= len(node):  # it was coded
        return None
    if isinstance(node, Draft):
        node.sealed = len(blob)
    return blob
