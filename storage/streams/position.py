"""Where a search ended in a stream; what the search found is handed on to the read that follows."""

from __future__ import annotations

from storage.nodes.packed import AnyNode


class Place:
    """Where a search ended in a stream: an entry's ordinal, and the node that was searched.

    The entry is in that node unless its ordinal is ``end``; ``node`` is None if none had to be opened. Valid until the
    stream changes.
    """

    __slots__ = ("end", "first", "node", "ordinal")

    def __init__(self, ordinal: int, node: AnyNode | None, first: int, end: int) -> None:
        self.ordinal = ordinal
        self.node = node
        self.first = first  # ordinal of the node's first entry
        self.end = end  # ordinal after its last entry
