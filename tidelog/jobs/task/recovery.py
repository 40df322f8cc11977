"""Brings the state of one partition to the last published version.

    at that version              nothing to do
    one epoch ahead, or of an    undone: that epoch was not published, or another run has published it
    unpublished run
    behind                       the markers after it are replayed
    anything else, or missing    replaced by the newest valid snapshot or an empty state; then as above

A replay reads the ranges of a marker again and calls the function as before; its results are discarded. The digest of
the changes of the state must be that of the marker.

Rule 1: Only the log determines what was published: a version is valid if the log has its epoch with its run. A snapshot
        whose epoch the log no longer has was published: the log is retained from the oldest snapshot on.
Rule 2: A store is used under its lock. A task that was suspended for a long time still holds its lock; the next slot is
        used in that case.
Rule 3: A different digest stops the job if the same code has produced both. After a change of the code, it is only
        logged: the state is then the result of the new code for the same input.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelog.client.entries import StreamId
from tidelog.jobs import keys
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError, InputsLostError, JobError, NotDeterministicError
from tidelog.jobs.replaylog.marker import InputSpan, Marker
from tidelog.jobs.replaylog.progress import read_log
from tidelog.jobs.store import StateStore, StateVersion, StoreError, StoreLockedError, StoreUnusableError
from tidelog.jobs.store.statedir import expanded
from tidelog.jobs.task.calls import CallContext, FunctionCalls
from tidelog.jobs.task.plan import TaskSettings
from tidelog.jobs.task.reading import TaskInput
from tidelog.jobs.task.rows import InputRows, recorded, split_calls
from tidelog.transport.call import Call
from tidelog.transport.leader import LeaderConnection

PATIENCE: Final = 5.0  # seconds to wait for a store's lock
LOOK_AGAIN: Final = 0.02  # seconds between two attempts
REPORT: Final = 1.0  # seconds between two progress reports
PROGRESS_MS: Final = 10_000  # lifetime of a progress record
NOTHING: Final = StateVersion(0, "")

log = logging.getLogger(__name__)
_slots: dict[Path, int] = {}  # by partition: the last slot


def ranges(inputs: Mapping[str, TaskInput], spans: Mapping[str, InputSpan]) -> str:
    """Describe what an epoch reads, for error texts."""
    lines = [
        f"  read: {inputs[name].key if name in inputs else name} after {span.after} up to {span.end}"
        f" ({span.rows:,} entries)"
        for name, span in spans.items()
    ]
    return "\n".join(lines) or "  read: nothing, the job is a source"


def position(spans: Mapping[str, InputSpan]) -> bytes:
    """Return the data that a store records with a version: how far each input was read."""
    return msgspec.json.encode({name: str(span.end) for name, span in spans.items()})


def open_store(where: TaskSettings, job: Job, partition: int) -> StateStore:
    """Open the store of a partition under its lock (Rule 2). Raises StoreError if this is impossible."""
    folder = Path(expanded(where.state_dir), job.name, str(where.generation), str(partition))
    for slot in count(_slots.get(folder, 0)):
        path, until = folder / str(slot), time.monotonic() + PATIENCE
        while True:
            try:
                store = StateStore.open(path, generation=where.generation, cache=where.cache)
            except StoreUnusableError as error:
                log.warning("job %s, partition %d: the state is recovered: %s", job.name, partition, error)
                store = StateStore.create(path, generation=where.generation, cache=where.cache)
            except StoreLockedError:
                if time.monotonic() < until:
                    time.sleep(LOOK_AGAIN)
                    continue
                log.warning("job %s, partition %d: %s; using another one", job.name, partition, path)
                break
            _slots[folder] = slot
            return store
    raise AssertionError("there is always another slot")


class _NoSnapshotError(Exception):
    """There is no snapshot."""


class _UnreachableVersionError(Exception):
    """The log does not lead from a version to the target. The text contains the reason."""


@dataclass
class Recovery:
    """Brings ``store`` to a version. It may be a different store afterwards; the caller closes it."""

    where: TaskSettings
    job: Job
    partition: int
    inputs: Mapping[str, TaskInput]
    servers: LeaderConnection
    store: StateStore
    replayed: int = 0  # epochs
    _origin: str = field(default="", init=False)  # where the state came from, for error texts
    _reported: float = field(default=0.0, init=False)
    _rows: int = field(default=0, init=False)

    def bring(self, last: Marker | None) -> None:
        """Bring the store to the epoch of this marker; None: to the initial state.

        Raises InputsLostError, NotDeterministicError, FunctionError or JobError; StoreError, SnapshotError, OSError or
        ReplyError.
        """
        target = NOTHING if last is None else StateVersion(last.epoch, last.run)
        if self.store.version != target and self.store.version.epoch >= target.epoch:
            self._undo()
        if self.store.version == target:
            return
        epoch = self.store.version.epoch
        near = not self.where.store or target.epoch - epoch <= self.job.snapshot_epochs
        if 0 < epoch < target.epoch and near:
            self._origin = f"the state on this machine is at epoch {epoch}"
            try:
                self._follow(target)
                return
            except _UnreachableVersionError as error:
                log.warning("%s: %s; recovering from the start", self._title, error)
            except InputsLostError:
                if not self.where.store:
                    raise
        restored = self._renew(target.epoch)
        try:
            self._follow(target, restored)
        except _UnreachableVersionError as error:
            raise InputsLostError(
                f"{self._title}: its state cannot be recovered: {error}. No older snapshot helps, and the earlier"
                f" inputs are unknown: tidelog jobs reset {self.job.name} --to earliest|latest|ID|TIME starts again"
                " with an empty state"
            ) from None

    # -- the starting version --------------------------------------------------------------------------------------
    @property
    def _title(self) -> str:
        return f"job {self.job.name!r}, partition {self.partition}"

    def _undo(self) -> bool:
        """Undo the last epoch, if possible."""
        if self.store.previous is None:
            return False
        self.store.undo()
        return True

    def _renew(self, most: int) -> bool:
        """Use the newest valid snapshot up to an epoch, or an empty state; return whether there is a snapshot."""
        path, where = self.store.path, self.where
        self.store.close()
        self._origin = "there is no snapshot"
        if where.store and most:
            from tidelog.jobs import snapshots  # here, since it loads fsspec

            def fill(into: Path) -> None:
                url, name, at = where.store, self.job.name, self.partition
                if not snapshots.restore(url, name, where.generation, at, into, most, published=self._published):
                    raise _NoSnapshotError

            try:
                self.store = StateStore.create(path, generation=where.generation, cache=where.cache, fill=fill)
                self._origin = f"the newest good snapshot is of epoch {self.store.version.epoch}"
                return True
            except snapshots.SnapshotError as error:
                text = f"{self._title}: its state cannot be recovered yet: {error}"
                raise StoreError(text) from error
            except _NoSnapshotError:
                self._origin = f"there is no snapshot in {where.store}"
        self.store = StateStore.create(path, generation=where.generation, cache=where.cache)
        return False

    def _published(self, epoch: int, run: str) -> bool:
        """Return whether this run published this epoch, according to the log."""
        marker, _ = self._find(epoch)
        return marker is None or marker.run == run

    def _follow(self, target: StateVersion, restored: bool = False) -> None:
        """Replay the log up to ``target``. Raises _UnreachableVersionError if it does not lead there."""
        version = self.store.version
        if version.epoch > target.epoch:
            if not self._undo():
                raise _UnreachableVersionError(f"its state is at epoch {version.epoch}, which was not published")
            self._follow(target, restored)
            return
        if version.epoch:
            marker, first = self._find(version.epoch)
            if marker is not None and marker.run != version.run:  # it was not published
                if not self._undo():
                    raise _UnreachableVersionError(f"epoch {version.epoch} of its state was never published")
                self._follow(target, restored)
                return
            if marker is None and not restored:
                raise _UnreachableVersionError(f"the replay log has no epoch {version.epoch}, the epoch of its state")
        else:
            _, first = self._find(0)
        if version.epoch == target.epoch:
            return
        if first is None or first[0] != version.epoch + 1:
            begins = "is empty" if first is None else f"begins with epoch {first[0]}"
            raise _UnreachableVersionError(f"the replay log {begins}, and {self._origin}")
        began = version.epoch
        for marker in self._markers(first[1], target.epoch):
            self._replay(marker)
            self._record_progress(began, marker.epoch, target.epoch)
        if self.store.version != target:
            raise _UnreachableVersionError(
                f"the replay log ends with epoch {self.store.version.epoch}, before epoch {target.epoch}"
            )

    # -- the log ---------------------------------------------------------------------------------------------
    def _find(self, epoch: int) -> tuple[Marker | None, tuple[int, StreamId] | None]:
        """Return the marker of an epoch, None if the log has none, and epoch and ID of the next marker."""
        behind: tuple[int, StreamId] | None = None
        for id_, marker in read_log(self.servers.ask, keys.log(self.job.name, self.partition)):
            if marker.generation < self.where.generation:
                break
            if marker.generation == self.where.generation:
                if marker.epoch <= epoch:
                    return marker if marker.epoch == epoch else None, behind
                behind = marker.epoch, id_
        return None, behind

    def _markers(self, start: StreamId, last: int) -> Iterator[Marker]:
        """Yield the markers from an ID on, up to an epoch. Raises _UnreachableVersionError if one is missing."""
        before = None
        for _, marker in read_log(self.servers.ask, keys.log(self.job.name, self.partition), start):
            if marker.generation != self.where.generation or marker.epoch > last:
                return
            if before is not None and marker.epoch != before + 1:
                raise _UnreachableVersionError(f"in the replay log, epoch {marker.epoch} follows epoch {before}")
            before = marker.epoch
            yield marker

    # -- replay --------------------------------------------------------------------------------------
    def _replay(self, marker: Marker) -> None:
        context = CallContext(self.job, self.partition, marker.epoch, marker.now_ms, ranges(self.inputs, marker.inputs))
        rows = [self._reread(context, marker, name, span) for name, span in marker.inputs.items() if span.rows]
        changes = self.store.begin(marker.now_ms)
        made = FunctionCalls(context, _discard, changes)
        try:
            if marker.inputs:
                rows = [made.decoded(one) for one in rows]
                if marker.calls:
                    made.run(rows, recorded(rows, marker.calls))
                else:
                    made.run(rows, split_calls(rows, marker.merge, marker.max_rows))
            else:
                made.run_empty()
        except FunctionError as error:
            raise FunctionError(
                f"{error}\nThis happened during recovery: the same entries were processed without an error when"
                f" epoch {marker.epoch} was published, by version {marker.version} of the function"
            ) from None
        except JobError as error:
            raise JobError(f"{context}: its marker in the replay log does not match its input: {error}") from None
        digest = self.store.commit(changes, marker.epoch, marker.run, position(marker.inputs))
        self.replayed += 1
        self._rows += sum(span.rows for span in marker.inputs.values())
        if digest != marker.digest:
            self._differs(context, marker)

    def _differs(self, context: CallContext, marker: Marker) -> None:
        """Handle a digest that differs (Rule 3)."""
        if marker.version != self.job.version:
            log.warning(
                "%s: version %s of the function changes the state differently than version %s did",
                context, self.job.version, marker.version,
            )  # fmt: skip
            return
        self.store.undo()
        raise NotDeterministicError(
            f"{context}: the function is not deterministic: called again with the same entries, it changed the state"
            f" differently than when the epoch was published. It must depend only on its batch and its state, not on"
            f" the clock, chance or the order of a set (use batch.now as the time). Code that is not part of version"
            f" {marker.version}, such as modules outside of the job's directory, must not have changed either\n"
            f"{context.ranges}"
        )

    def _reread(self, context: CallContext, marker: Marker, name: str, span: InputSpan) -> InputRows:
        """Return the rows of one input as the function got them."""
        one = self.inputs.get(name)
        if one is None:
            raise JobError(
                f"{context}: the epoch has read topic {name!r}, which is not an input any more, so its state cannot"
                f" be recovered: declare it as an input again, or reset the job (tidelog jobs reset {self.job.name})"
            )

        def lost(what: str) -> InputsLostError:
            return InputsLostError(
                f"{context}: {what} do not exist any more, but the recovery of the state needs them: {self._origin}."
                f" Retention must protect them until a snapshot covers them: overflow='protect' for topic {name!r}. To"
                f" start again: tidelog jobs reset {self.job.name} --to earliest|latest|ID|TIME"
            )

        rows = one.reread(self.servers, span, lost)
        skipped = set(marker.skipped.get(name, ()))
        if skipped:
            rows = rows.without([at for at, text in enumerate(rows.ids.to_pylist()) if text in skipped])
        return rows

    def _record_progress(self, began: int, epoch: int, target: int) -> None:
        """Record the progress on the server."""
        if time.monotonic() < self._reported + REPORT:
            return
        self._reported = time.monotonic()
        said = {"from": began, "epoch": epoch, "to": target, "rows": self._rows}
        key = keys.recovery(self.job.name, self.partition)
        self.servers.ask(Call(("SET", key, msgspec.json.encode(said), "PX", PROGRESS_MS), bool))


def _discard(returned: Any) -> None:
    """Discard the result of a replayed call, which was published before."""
