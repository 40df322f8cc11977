"""The helper: the process that copies history to the object store. The server starts, supervises, and kills it.

A process rather than a thread: encoding takes the GIL for seconds, and a driver that hangs can only be killed with its
process. It reads requests from standard input, one JSON object per line, and writes lines to standard output:

    {"url": ..., "server": ID, "seconds": 60, "follows": false, "self": ID}
                                                   the first line: the prefix, its owner, the limit of a call, whether
                                                   this is a replica (``following``), and the ID of a replica without
                                                   a server group
    {"directory": ..., "epoch": 0, "now": ms, "after": hex, "offset": -1, "floor": 0, "frees": false,
     "seconds": 60, "grace": 86400, "points": {ID: offset}, "deletes": true, "moves": [ID, ...], "end": 0}
                                                   a pass, see ``PassRequest``, ``DeletionRequest``, whether it also
                                                   deletes, and the moves to this group (``linking``)
    {"link": {"move": ID, "url": ..., "owner": ID, "objects": [[name, bytes], ...], "epoch": 1}, "seconds": 60,
     "grace": 86400}                               links for a move, see ``LinkRequest``

    {"calls": 9, "failed": 0, "objects": 1, "entries": 1000, "bytes": 5000, "deleted_objects": 0, "deleted_bytes": 0,
     "waiting": [0, 0]}                            the totals of the process; objects and bytes that wait for deletion
    {..., "warning": "..."}                        a line for the server's log
    {..., "freed": [[key, digest, reference], ...]}    nodes whose entries can leave the store (``freeing``), in hex
    {..., "done": true, "complete": true, "problems": [], "undeleted": []}      the end of a pass, or of the start
    {..., "done": true, "linked": [true, ...]}     the end of a request for links
    {..., "error": "..."}                          the last line: the process ends

Rule 1: each step of the work writes a line, at most every PROGRESS seconds. The server kills a process that is silent
for longer than a call may take.
Rule 2: after an error, the process ends. The next one has new connections and reads the credentials again.
Rule 3: it ends when its standard input is closed, because the server has ended then.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from persistence.tiering.adopting import adopt
from persistence.tiering.deleting import Deleting
from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.following import Following
from persistence.tiering.freeing import FreedNode, Freeing
from persistence.tiering.linking import LinkRequest, ObjectLinks
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.needed import DeletionRequest
from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, TimedOutError
from persistence.tiering.ownership import ForeignPrefixError, check_store, claim
from persistence.tiering.rewriting import ObjectRewriting
from persistence.tiering.source import DueNodes
from persistence.tiering.tieringpass import MOST_PROBLEMS, PassRequest, TieringPass, TieringState
from resp.errors import CorruptError
from storage.streams import tierafter

PROGRESS: Final = 0.5  # seconds between two lines of progress
NICE: Final = 5  # the server and its clients have precedence


class Helper:
    """The work of the process."""

    def __init__(self, first: dict[str, Any], output: TextIO) -> None:
        self._output = output
        self._written = 0.0  # monotonic time of the last line
        self._writing = threading.Lock()
        self._state = TieringState()
        self._store = HistoryStore(first["url"], first["seconds"], self._progress)
        self._server: str = first["server"]
        self._self: str = first["self"]
        self._deletions = DeletionList(self._store, self._server, _now)
        self._manifests = ManifestStore(self._store, self._server, self._warn, self._deletions, _now)
        self._deleting = Deleting(self._store, self._manifests, self._deletions, self._progress, _now)
        self._freeing = Freeing(self._store, self._manifests, self._found, self._progress)
        self._rewriting = ObjectRewriting(self._store, self._warn, self._progress)
        self._links = ObjectLinks(self._store, self._deletions, self._progress, self._warn, _now)
        self._foreign: ForeignPrefixError | None = None
        self._following: Following | None = None
        if first["follows"]:
            self._following = Following(self._store, self._server, self._found, self._progress, self._warn)

    def begin(self) -> None:
        """Check the object store and the owner of the prefix. Raises HistoryStoreError, CorruptError."""
        if self._following is None:
            check_store(self._store)
            try:
                claim(self._store, self._server)
            except ForeignPrefixError as error:
                self._foreign = error  # the first request says where the store is
            self._deletions.load()
        self._write(done=True, complete=True, problems=[], undeleted=[])

    def serve(self, request: dict[str, Any]) -> None:
        """Run a pass, or create links. Raises HistoryStoreError, CorruptError, OSError."""
        self._store.seconds = request["seconds"]
        if "link" in request:
            self._link(request["link"], request["grace"] * 1000)
            return
        if self._following is not None:
            directory = Path(request["directory"])
            try:
                problems = self._following.run(directory, _due(request))
            except ForeignPrefixError:
                if self._self:  # it can have references from when it followed the owner
                    adopt(self._store, self._self, directory, _now(), self._progress, self._warn)
                raise
            self._write(done=True, complete=True, problems=problems[:MOST_PROBLEMS], undeleted=[])
            return
        if self._foreign is not None:
            adopt(self._store, self._server, Path(request["directory"]), _now(), self._progress, self._warn)
            raise self._foreign
        self._deletions.epoch = request["epoch"]
        waiting = frozenset(file.name for file in self._deletions.current.files)
        wanted = PassRequest(
            Path(request["directory"]), request["epoch"], _due(request), request["offset"], request["floor"],
            request["frees"], bool(request["moves"]),
        )  # fmt: skip
        deletion = DeletionRequest(
            wanted.directory, wanted.epoch, wanted.offset, wanted.floor, request["points"], request["grace"] * 1000,
            waiting,
        )  # fmt: skip
        self._deleting.prepare(deletion)
        self._release(wanted, frozenset(request["moves"]), request["end"])
        self._rewriting.run(wanted.directory, wanted.offset, wanted.floor)
        one = TieringPass(wanted, self._state, self._store, self._manifests, self._progress)
        complete = one.run()
        if wanted.frees:
            self._free(wanted, one.problems)
        if request["deletes"] and complete:
            self._deleting.sweep(deletion, self._state.copied)
        undeleted = self._deleting.problems[:MOST_PROBLEMS]
        self._write(done=True, complete=complete, problems=one.problems[:MOST_PROBLEMS], undeleted=undeleted)

    def _link(self, wanted: dict[str, Any], grace: int) -> None:
        """Create links for a move. Raises TimedOutError, OSError."""
        objects = [(str(name), int(size)) for name, size in wanted["objects"]]
        linked = [False] * len(objects)
        try:
            if self._foreign is not None:
                raise self._foreign
            self._deletions.epoch, self._deletions.grace = wanted["epoch"], grace
            request = LinkRequest(wanted["move"], wanted["url"], wanted["owner"], objects, wanted["epoch"])
            linked = self._links.link(request)
        except TimedOutError:
            raise
        except (HistoryStoreError, CorruptError) as error:
            self._warn(f"objects of {wanted['url']} can't be linked for a move of slots: {error}")
        self._write(done=True, linked=linked)

    def _release(self, wanted: PassRequest, moves: frozenset[str], end: int) -> None:
        """Remove the pins of moves that have ended. Raises TimedOutError, OSError."""
        try:
            if self._links.release(wanted.directory, moves, end, wanted.offset, wanted.floor):
                self._deleting.find_orphans_again()
        except TimedOutError:
            raise
        except (HistoryStoreError, CorruptError) as error:
            self._deleting.problems.append(str(error))

    def _free(self, wanted: PassRequest, problems: list[str]) -> None:
        """Report what can leave the store. Adds the errors of single streams to ``problems``."""
        copied = self._state.copied
        self._freeing.forget(set(copied))
        for sid, known in list(copied.items()):
            try:
                if known.number and self._freeing.compared_to(sid) < known.end_ord:  # 0: there is no manifest yet
                    manifest = self._manifests.load(known.name, known.number)
                    if manifest.sid == sid:  # otherwise, of another stream with this name; the next pass replaces it
                        self._freeing.free(wanted.directory, manifest, wanted.due)
            except CorruptError as error:
                problems.append(f"stream {known.name!r}: {error}")

    def _found(self, nodes: list[FreedNode]) -> None:
        self._write(freed=[[part.hex() for part in node] for node in nodes])

    def fail(self, text: str) -> None:
        """Write the last line."""
        self._write(error=text)

    def _warn(self, text: str) -> None:
        self._write(warning=text)

    def _progress(self) -> None:
        if time.monotonic() - self._written >= PROGRESS:
            self._write()

    def _write(self, **more: Any) -> None:
        totals, deleted = self._state.totals, self._deleting.totals
        line = {
            "calls": self._store.calls, "failed": self._store.failed, "objects": totals.objects,
            "entries": totals.entries, "bytes": totals.bytes, "deleted_objects": deleted.objects,
            "deleted_bytes": deleted.bytes, "waiting": [deleted.waiting_objects, deleted.waiting_bytes], **more,
        }  # fmt: skip
        with self._writing:
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()
            self._written = time.monotonic()


def _due(request: dict[str, Any]) -> DueNodes:
    return DueNodes(request["now"], tierafter.unpack(bytes.fromhex(request["after"])))


def _now() -> int:
    return int(time.time() * 1000)


def main() -> None:
    """Serve requests until standard input is closed, or until an error."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # drivers may print
    with suppress(OSError):  # the filter of system calls in our units for systemd refuses it
        os.nice(NICE)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    helper = Helper(json.loads(requests.get()), output)
    try:
        helper.begin()
        while True:
            helper.serve(json.loads(requests.get()))
    except (HistoryStoreError, CorruptError, OSError) as error:
        helper.fail(str(error))
    except Exception as error:  # noqa: BLE001 - the server logs it
        helper.fail(f"bug: {error!r}")
    output.flush()
    os._exit(1)  # does not wait for threads with calls that hang


def _receive(requests: queue.SimpleQueue[str]) -> None:
    try:
        for line in sys.stdin:
            requests.put(line)
    finally:
        os._exit(0)  # also after an error: nobody would read the requests
