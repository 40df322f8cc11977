"""The reader: the process that reads entries from history objects into the disk cache (``persistence.diskcache``).

The server runs it while entries are only in the object store. It reads requests from standard input, one JSON object
per line, and answers each with one line on standard output, in any order:

    {"url": ..., "seconds": 60, "directory": ...}  the first line: the prefix, the limit of a call, that of the cache

    {"id": 1, "object": name, "offset": 0, "size": 0, "checksum": 0, "nodes": [[digest, first ordinal, count], ...],
     "urgent": true}                               one section, the nodes to take from it, and whether a command waits
    {"id": 1, "urgent": true, "first": digest}     a command waits for this one now, and for this node of it
    {"id": 1, "files": [[digest, bytes], ...]}     these nodes are in the cache
    {"id": 1, "files": [[...]], "more": true}      the first node is, for which a command waits; another answer follows
    {"id": 1, "error": "...", "lost": false}       no others are; "lost": the object is missing or damaged

Decision: a section has about nine nodes of sensor readings. Decoding it and building one node takes 2.5 ms of CPU
time, and the others 4 ms. So a command waits for one node only.

THREADS requests are in progress at a time, those that commands wait for first. Each fourth one is one of the others, so
that none waits without end. The process ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from array import array
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TextIO

from persistence.permissions import FOLDER, opener
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError
from resp.errors import CorruptError
from storage.history import section
from storage.history.section import SectionEntries
from storage.model.ids import MASK64
from storage.nodes.node import Node, new_compressor, seal

THREADS: Final = 16
OTHERS: Final = 4  # each fourth request is one for which no command waits, if there is one


class RequestQueue:
    """The requests that are not in progress. Any thread."""

    def __init__(self) -> None:
        self._urgent: dict[int, dict[str, Any]] = {}  # by ID, oldest first
        self._others: dict[int, dict[str, Any]] = {}
        self._taken = 0
        self._changed = threading.Condition()

    def put(self, line: dict[str, Any]) -> None:
        """Add a request, or make one urgent."""
        with self._changed:
            request = line if "object" in line else self._others.pop(line["id"], None)
            if request is not None and request is not line:
                request["urgent"] = True
                request["nodes"].sort(key=lambda node: node[0] != line["first"])  # stable
            if request is not None:
                (self._urgent if line["urgent"] else self._others)[request["id"]] = request
                self._changed.notify()

    def take(self) -> dict[str, Any]:
        """Remove the next request, and return it. Waits until there is one."""
        with self._changed:
            while not self._urgent and not self._others:
                self._changed.wait()
            self._taken += 1
            first = self._others if self._others and self._taken % OTHERS == 0 else self._urgent or self._others
            return first.pop(next(iter(first)))


class HistoryReader:
    """The work of the process."""

    def __init__(self, first: dict[str, Any], output: TextIO) -> None:
        self._output = output
        self._writing = threading.Lock()
        self._store = HistoryStore(first["url"], first["seconds"], lambda: None)
        self._directory = Path(first["directory"])

    def open(self) -> None:
        """Prepare the object store and the directory of the cache. Raises HistoryStoreError, OSError."""
        self._directory.mkdir(mode=FOLDER, exist_ok=True)
        self._store.open()

    def serve(self, request: dict[str, Any]) -> None:
        """Answer a request. Any thread."""
        nodes, answer = request["nodes"], dict[str, Any]()
        try:
            entries = self._read(request)
            if request["urgent"] and len(nodes) > 1:
                self._answer(request, {"files": self._store_nodes(request, entries, nodes[:1]), "more": True})
                nodes = nodes[1:]
            answer["files"] = self._store_nodes(request, entries, nodes)
        except (HistoryStoreError, CorruptError, OSError) as error:
            answer = {"error": str(error), "lost": isinstance(error, MissingFileError | CorruptError)}
        except Exception as error:  # noqa: BLE001 - the server logs it
            answer = {"error": f"bug: {error!r}", "lost": False}
        self._answer(request, answer)

    def _answer(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        with self._writing:
            self._output.write(json.dumps({"id": request["id"], **answer}) + "\n")
            self._output.flush()

    def _read(self, request: dict[str, Any]) -> SectionEntries:
        """Read a section. Raises HistoryStoreError, CorruptError."""
        name, start = f"objects/{request['object']}", request["offset"]
        raw = self._store.read(name, start, start + request["size"])
        try:
            if int.from_bytes(raw[:8], "little") != request["checksum"]:
                raise CorruptError("it has other bytes than were written")
            return section.decode(raw)
        except CorruptError as error:
            raise _damaged(request, error) from error

    def _store_nodes(
        self, request: dict[str, Any], entries: SectionEntries, nodes: list[tuple[str, int, int]]
    ) -> list[tuple[str, int]]:  # fmt: skip
        """Write some of the nodes into the cache. Return their digests and sizes. Raises CorruptError, OSError."""
        try:
            built = [(digest, _node(entries, first, count)) for digest, first, count in nodes]
        except CorruptError as error:
            raise _damaged(request, error) from error
        compressor = new_compressor()
        self._directory.mkdir(mode=FOLDER, exist_ok=True)  # it may be deleted at any time
        return [(digest, self._write(digest, seal(node, compressor=compressor))) for digest, node in built]

    def _write(self, digest: str, blob: bytes) -> int:
        """Write a file. Without a sync: a file that a crash has damaged is removed when it is read."""
        temporary = self._directory / f".{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb", opener=opener) as file:
                file.write(blob)
            temporary.rename(self._directory / digest)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        return len(blob)


def _damaged(request: dict[str, Any], error: CorruptError) -> CorruptError:
    return CorruptError(f"objects/{request['object']} is damaged at offset {request['offset']}: {error}")


def _node(entries: SectionEntries, first: int, count: int) -> Node:
    """Return the node of ``count`` entries from the ordinal ``first`` on. Raises CorruptError."""
    at = first - entries.head.first_ord
    if not 0 <= at < len(entries) or entries.ordinals[at] != first:
        at = next((place for place, ordinal in enumerate(entries.ordinals) if ordinal == first), len(entries))
    ids = entries.ids[at : at + count]
    if len(ids) != count or entries.ordinals[at + count - 1] != first + count - 1:
        raise CorruptError(f"it lacks entries from ordinal {first} on")
    base = ids[0] >> 64
    ms, seq = array("Q", [(one >> 64) - base for one in ids]), array("Q", [one & MASK64 for one in ids])
    wires = [entries.wire(place) for place in range(at, at + count)]
    return Node(base, ms, seq, array("I", accumulate(map(len, wires))), b"".join(wires))


def main() -> None:
    """Serve requests until standard input is closed."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # drivers may print
    reader = HistoryReader(json.loads(sys.stdin.readline()), output)
    try:
        reader.open()
    except (HistoryStoreError, OSError) as error:
        output.write(json.dumps({"failed": str(error)}) + "\n")
        output.flush()
        os._exit(1)
    requests = RequestQueue()

    def work() -> None:
        while True:
            reader.serve(requests.take())

    for _ in range(THREADS):
        threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)  # does not wait for calls that hang
