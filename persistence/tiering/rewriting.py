"""Writes objects again that are missing or damaged, as long as the store has their entries.

Rule 1: the object that is written is the one that was lost, byte for byte: its name contains the digest of its bytes.
So manifests, references in the stores of replicas, and readers need no change. An object that differs is not written.
Rule 2: this needs all entries of the object in nodes of the store. It fails if some of them have left the store, were
deleted or evicted, or if the nodes have other borders, as after a change of the leader. Another version of the library
that compresses can also have another result.
Rule 3: a request (``storage.history.rewrites``) counts once. The log of the server reports the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from xxhash import xxh3_128_hexdigest

from persistence.tiering import objects
from persistence.tiering.objects import ObjectBuilder
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError
from persistence.tiering.source import StoredEntries, StoreView
from persistence.tiering.tieringpass import AT_ONCE, NotReadyError, ready
from resp.errors import CorruptError
from storage.history import rewrites
from storage.history.deletions import OBJECT
from storage.history.rewrites import RewriteRequest, RewrittenStream

_REMEDY: Final = "restore it from a version of the bucket, or see tidelog history forget"


class CannotRewriteError(Exception):
    """Raised if the store does not have the object. The text says why."""


class ObjectRewriting:
    """Executes the requests below a prefix."""

    def __init__(self, store: HistoryStore, warn: Callable[[str], None], progress: Callable[[], None]) -> None:
        """``warn``: called with a line for the server's log. ``progress``: called after each section."""
        self._store = store
        self._warn = warn
        self._progress = progress

    def run(self, directory: Path, offset: int, floor: int) -> None:
        """Execute all requests. Arguments: see ``PassRequest``. Raises HistoryStoreError, OSError."""
        for name in self._store.names(rewrites.FOLDER):
            file = f"{rewrites.FOLDER}/{name}"
            try:
                request = rewrites.decode(self._store.read(file))
                if name != f"{request.object}.json" or not OBJECT.fullmatch(f"objects/{request.object}"):
                    raise CorruptError("the request has the name of another object")
                text = self._execute(request, directory, offset, floor)
            except NotReadyError:
                return  # a later pass continues
            except MissingFileError:
                continue
            except CorruptError as error:
                text = f"{file}: {error}"
            except CannotRewriteError as error:
                text = f"the object can't be written again, because {error}: {_REMEDY}"
            self._warn(f"repair of {name.removesuffix('.json')}: {text}")
            self._store.remove(file)

    def _execute(self, request: RewriteRequest, directory: Path, offset: int, floor: int) -> str:
        """Write an object, and return the result for the log. Raises CannotRewriteError, and as ``run``."""
        name = f"objects/{request.object}"
        if self._is_intact(name):
            return "the object is intact"
        builder = ObjectBuilder()
        for stream in sorted(request.streams, key=lambda its: its.sid):  # the order in which a pass copies
            lo = stream.first_ord
            while lo < stream.end_ord:
                with ready(directory, offset, floor) as view:
                    lo = self._add(view, builder, stream, lo)
        if builder.empty:
            raise CannotRewriteError("the request names no entries")
        made = builder.finish(int(request.object[:16], 16))
        if made.name != request.object:
            raise CannotRewriteError(
                "the nodes in the store differ from those that were copied, for example because entries were deleted,"
                " or because a replica became the leader"
            )
        self._store.write(name, made.content)
        try:
            objects.check(made, self._store.read(name), self._progress)
        except CorruptError as error:
            raise HistoryStoreError(f"{name}: {error}") from error
        return f"the object was written again from the store, with {made.entries} entries"

    def _is_intact(self, name: str) -> bool:
        with suppress(MissingFileError):
            return xxh3_128_hexdigest(self._store.read(name)) == name[-37:-5]
        return False

    def _add(self, view: StoreView, builder: ObjectBuilder, wanted: RewrittenStream, lo: int) -> int:
        """Add sections from ordinal ``lo`` on, at most AT_ONCE. Return the ordinal after the last one."""
        stream = view.stream(wanted.sid)
        if stream is None:
            raise CannotRewriteError(f"stream {wanted.name!r} was deleted")
        if stream.first_ord > wanted.first_ord:
            raise CannotRewriteError(f"entries of stream {wanted.name!r} were evicted")
        nodes = _local(view.between(stream, lo, wanted.end_ord), wanted.name)
        for number, made in enumerate(objects.sections(wanted.name, lo, nodes), 1):
            builder.add(made)
            self._progress()
            if number == AT_ONCE:
                return made.end_ord
            lo = made.end_ord
        if lo < wanted.end_ord:
            raise CannotRewriteError(f"entries of stream {wanted.name!r} were deleted")
        return lo


def _local(nodes: Iterable[StoredEntries], stream: bytes) -> Iterator[StoredEntries]:
    """Yield nodes. Raises CannotRewriteError if the entries of one have left the store."""
    for node in nodes:
        if node.reference is not None:
            raise CannotRewriteError(f"entries of stream {stream!r} have left the store, for {node.reference.object}")
        yield node
