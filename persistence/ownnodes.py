"""The nodes of a replica's own store during a copy from its leader: reports them, and reuses those that are equal.

Rule 1: nodes are used only if they have the digest that the leader has computed from its own nodes (``noderuns``). A
node that was damaged on the disk is therefore not used, because its run has a different digest when it is reported or
when it is read again.
Rule 2: both readings use one read transaction. A checkpoint during the copy changes the last nodes of streams, and the
leader would refer to nodes that no longer exist. The pages that LMDB cannot reuse meanwhile are few, because the log of
a replica does not grow during a copy.

Decision: runs are short at both ends of a stream, where appends and eviction change it: a run has at most half as many
nodes as there are before or after it. Two members whose streams differ at the ends therefore transfer only a small
multiple of the difference. Short streams share runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from persistence.layout import CRC, NODE_KEY, STREAM, U64
from persistence.noderuns import CHUNK, MOST_NODES, RUN, Run, RunDigest
from persistence.storecopy import NODES, STREAMS, StoreSnapshot
from resp.errors import CorruptError

SHORT = 2  # nodes of a short stream
LONGEST_RUN = 1 << 18  # bytes of nodes after which a run ends
LONGEST_SHARED = 1 << 15  # the same if the run has the nodes of several short streams
AT_ONCE = 1 << 24  # bytes of nodes after which a chunk ends; a stop waits until they are read


class OtherNodesError(CorruptError):
    """Raised if this server lacks the nodes to which the leader refers. A copy without references is required."""


class OwnNodes(StoreSnapshot):
    """The nodes as of one point in time. Any thread may use them, one at a time."""

    _source: Iterator[tuple[Run, int]] | None = None  # the runs that have not been reported, and their bytes

    def chunk(self) -> bytes:
        """Return the next runs; b"" after the last one. Raises OSError, CorruptError."""
        if self._source is None:
            self._source = self._runs()
        parts: list[bytes] = []
        left = AT_ONCE
        with self.reading():
            for run, size in self._source:
                parts.append(RUN.pack(*run))
                left -= size
                if left <= 0 or len(parts) == CHUNK // RUN.size:
                    break
        return b"".join(parts)

    def _runs(self) -> Iterator[tuple[Run, int]]:
        run = RunDigest()
        sid = -1
        position = total = 0  # nodes of the stream before this one, and in all
        for raw_key, raw_blob in self._txn.cursor(db=self._databases[NODES]):
            key = bytes(raw_key)
            (of,) = U64.unpack_from(key)
            joined = True
            if of != sid:
                before, sid, position, total = total, of, 0, self._nodes_of(of)
                joined = before <= SHORT and total <= SHORT
            if total <= SHORT:
                most, longest = MOST_NODES, LONGEST_SHARED
            else:
                most, longest = min(MOST_NODES, max(1, min(position, total - position) // 2)), LONGEST_RUN
            if run.count and (not joined or run.count >= most or run.size >= longest):
                yield run.run(), run.size
                run = RunDigest()
            run.add(key, bytes(raw_blob))
            position += 1
        if run.count:
            yield run.run(), run.size

    def _nodes_of(self, sid: int) -> int:
        """Return the number of a stream's nodes; 0 if it is unknown, because the stream is damaged."""
        value = bytes(self._txn.get(U64.pack(sid), db=self._databases[STREAMS]) or b"")
        try:
            return int(STREAM.unpack_from(value, CRC.size)[1])
        except struct.error:
            return 0

    def take(self, first: bytes, last: bytes, digest: bytes) -> list[tuple[bytes, bytes]]:
        """Return the nodes from ``first`` to ``last``, keys and blobs.

        Raises OtherNodesError if they do not have this digest, OSError.
        """
        found: list[tuple[bytes, bytes]] = []
        run = RunDigest()
        with self.reading():
            cursor = self._txn.cursor(db=self._databases[NODES])
            there = len(first) == NODE_KEY.size and cursor.set_range(first)
            while there and (key := bytes(cursor.key())) <= last and run.count <= MOST_NODES:
                found.append((key, bytes(cursor.value())))
                run.add(*found[-1])
                there = cursor.next()
        if run.count > MOST_NODES or not found or run.digest() != digest:
            raise OtherNodesError("the leader refers to nodes that this server does not have")
        return found
