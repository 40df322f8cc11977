"""What is done while a process is killed: a pass, the comparison, the replacement of nodes, and reads."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from persistence.log import Log
from persistence.tiering.freeing import FreedNode, Freeing
from persistence.tiering.reader import HistoryReader
from persistence.tiering.source import AGELESS
from resp.errors import AbsentNodeError
from storage.keyspace.keyspace import Keyspace
from storage.model.entries import entry_wire, id_bulk
from storage.nodes import reference
from storage.streams.stream import Stream
from tests.persistence.datakit import append, checkpoint, opened
from tests.persistence.tiering.kit import Copier

ENTRIES = 55  # in nodes of ten


def add(ks: Keyspace, count: int) -> None:
    """Append entries that can't be compressed much."""
    stream = append(ks, b"a", 0)
    random_ = random.Random(stream.last_ms)
    for _ in range(count):
        ms = stream.last_ms + 1
        ks.append(b"a", stream, ms, 0, entry_wire(id_bulk(ms, 0), [b"f", random_.randbytes(80)]))


class _Nodes(list[FreedNode]):
    """Nodes to replace. Each one is a point at which the process can be killed."""

    point: Callable[[], None]

    def __iter__(self) -> Iterator[FreedNode]:
        for node in super().__iter__():
            self.point()
            yield node


def work(path: Path, target: Path, point: Callable[[], None]) -> None:
    """Copy, compare, and free everything that is due. Then read everything, and write a checkpoint."""
    copier = Copier(path / "store", target)
    assert copier.run()
    assert (copier.problems, copier.warnings) == ([], [])
    nodes = _Nodes()
    nodes.point = point
    freeing = Freeing(copier.objects, copier.manifests, nodes.extend, lambda: None)
    for known in copier.state.copied.values():
        freeing.free(path / "store", copier.manifests.load(known.name, known.number), AGELESS)
    with opened(path) as (log, ks, _):
        log.store.free(nodes)
        log.renew_view()
        ks.pool.max_entries, ks.pool.cache.max_bytes = 10, 0
        stream = ks.keys[b"a"]
        assert isinstance(stream, Stream)
        for first in range(0, ENTRIES, 10):
            try:
                stream.read(first, min(first + 10, ENTRIES))
            except AbsentNodeError as error:
                fetch(log, target, error)
        add(ks, 10)
        checkpoint(log, ks)


def fetch(log: Log, target: Path, error: AbsentNodeError) -> None:
    """Read a node back into the disk cache, as the process does that reads history."""
    its = reference.unpack(error.raw)
    output = io.StringIO()
    reader = HistoryReader({"url": str(target), "seconds": 60, "directory": str(log.store.tiered.path)}, output)
    reader.open()
    reader.serve({
        "id": 1, "object": its.object, "offset": its.offset, "size": its.size, "checksum": its.checksum,
        "nodes": [(its.digest.hex(), error.first_ord, its.entries)], "urgent": True,
    })  # fmt: skip
    answer = json.loads(output.getvalue())
    assert "error" not in answer, answer
