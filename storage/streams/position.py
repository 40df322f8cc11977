"""The result of a search in a stream, which the following read uses."""

from __future__ import annotations

from storage.nodes.packed import AnyNode


class StreamPosition:
    """An entry's ordinal and the node that was searched.

    The entry is in the node unless its ordinal is ``end``. ``node`` is None if no node was opened. Valid until the
    stream changes.
    """

    __slots__ = ("end", "first", "node", "ordinal")

    def __init__(self, ordinal: int, node: AnyNode | None, first: int, end: int) -> None:
        self.ordinal = ordinal
        self.node = node
        self.first = first  # ordinal of the node's first entry
        self.end = end  # ordinal after its last entry
