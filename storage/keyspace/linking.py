"""The history objects to which moving streams refer, and the references that the other group gets instead of entries.

The other group has links to some of these objects below its own prefix (``persistence.tiering.linking``). Their names
have the same digest, and another epoch.

Rule 1: once a node of a stream is sent with its entries although it has a reference here, so are all nodes after it.
The references of the copy are then at its beginning. The new owner copies the entries after them to its own objects,
and a manifest has no gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.nodes import reference
from storage.nodes.reference import Reference
from storage.streams.stream import Stream

NAMES: Final = 1000  # that one step examines
NODES: Final = 50  # the same; each is read from the store
NOT_LINKED: Final[dict[str, int]] = {}


class LinkedObjects:
    """The references of the copy of one key."""

    def __init__(self, linked: Mapping[str, int]) -> None:
        """``linked``: the objects that the other group has, with the epoch in the names that they have there."""
        self._linked = linked
        self._ended = not linked  # Rule 1

    def refer(self, raw: bytes) -> bytes:
        """Return the reference of the copy of a node with a reference; b"": the copy has the entries."""
        if not self._ended:
            found = _unpacked(raw)
            epoch = None if found is None else self._linked.get(found.object)
            if found is not None and epoch is not None:
                return found._replace(epoch=epoch).pack()
            self._ended = True
        return b""


def find_objects(ks: Keyspace, moves: Callable[[bytes], bool], found: dict[str, int]) -> Iterator[None]:
    """Add the objects to which the nodes of moving streams refer to ``found``, with the bytes of these sections.

    ``moves``: whether a key has one of the moving slots. Yields between small steps, after which keys can have changed.
    Raises CorruptError, OSError.
    """
    cursor, begun = 0, False
    while cursor or not begun:
        begun = True
        cursor, names = ks.index.page(cursor, NAMES)
        yield
        for name in names:
            value = ks.keys.get(name) if moves(name) else None
            if isinstance(value, Stream) and value.length:
                yield from _of_stream(value, found)
                yield


def _of_stream(stream: Stream, found: dict[str, int]) -> Iterator[None]:
    section = 0, b"", -1  # of the node before
    nodes = stream.snapshot(stream.first_ord, stream.next_ord)
    try:
        for number, raw in enumerate(nodes.references(), 1):
            its = _unpacked(raw) if raw else None
            if its is not None and its.section != section:
                section = its.section
                found[its.object] = found.get(its.object, 0) + its.size
            if number % NODES == 0:
                yield
    finally:
        nodes.close()


def _unpacked(raw: bytes) -> Reference | None:
    """Return a reference; None if it is damaged. A read of its entries then reports this."""
    try:
        return reference.unpack(raw)
    except CorruptError:
        return None
