"""The state of one partition, brought to the version that was published last.

    at it                       go on
    one ahead, or of a run      taken back: that epoch was not published, or another run has published it
    that was not published
    behind                      the markers behind it are replayed
    anything else, or nothing   the newest good snapshot, or an empty state; then the same

A replay reads the ranges of a marker again and calls the function as it was called, with what it returns dropped. The
digest of what has changed must be the marker's.

Rule 1: only the log says what was published: a version counts if the log has its epoch with its run. A snapshot whose
        epoch the log does not have any more was published: the log is kept from the oldest snapshot on.
Rule 2: a store is used under its lock. A task that was stopped for long holds its lock; then the next slot is used.
Rule 3: a digest that differs stops the job, if the same code has made both. After a change of the code it is a line in
        the log: the state is then what the new code makes of the same input.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import checked
from tidelog.jobs import keys
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError, InputsLostError, JobError, NotDeterministicError
from tidelog.jobs.replaylog.marker import InputSpan, Marker, read_marker
from tidelog.jobs.state import State
from tidelog.jobs.store import StateChanges, StateStore, StateVersion, StoreError, StoreLockedError, StoreUnusableError
from tidelog.jobs.store.statedir import expanded
from tidelog.jobs.task.calls import CallContext, FunctionCalls
from tidelog.jobs.task.plan import TaskSettings
from tidelog.jobs.task.reading import TaskInput
from tidelog.jobs.task.rows import InputRows, cut, recorded
from tidelog.transport.call import Call
from tidelog.transport.leader import LeaderConnection

PATIENCE: Final = 5.0  # seconds that a store's lock is waited for
LOOK_AGAIN: Final = 0.02  # seconds between two attempts
PAGE: Final = 200  # markers that are read at a time
TELL: Final = 1.0  # seconds between two words about progress
TOLD_MS: Final = 10_000  # how long they stand
NOTHING: Final = StateVersion(0, "")

log = logging.getLogger(__name__)
_slots: dict[Path, int] = {}  # by partition: the slot that was used last


def ranges(inputs: Mapping[str, TaskInput], spans: Mapping[str, InputSpan]) -> str:
    """What an epoch reads, for people."""
    lines = [
        f"  read: {inputs[name].key if name in inputs else name} after {span.after} up to {span.end}"
        f" ({span.rows:,} entries)"
        for name, span in spans.items()
    ]
    return "\n".join(lines) or "  read: nothing, it is a source"


def position(spans: Mapping[str, InputSpan]) -> bytes:
    """What a store keeps with a version: how far each input was read."""
    return msgspec.json.encode({name: str(span.end) for name, span in spans.items()})


def hold(where: TaskSettings, job: Job, partition: int) -> StateStore:
    """The store of a partition, whatever is in it, under its lock (Rule 2). StoreError where there can be none."""
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
                log.warning("job %s, partition %d: %s; another one is used", job.name, partition, path)
                break
            _slots[folder] = slot
            return store
    raise AssertionError("there is always another slot")


class _NoneError(Exception):
    """There is no snapshot."""


class _NoWayError(Exception):
    """A version from which the log does not lead on. The text says why."""


@dataclass
class Recovery:
    """Brings ``store`` to a version. It may be another one afterwards; the caller closes it."""

    where: TaskSettings
    job: Job
    partition: int
    inputs: Mapping[str, TaskInput]
    servers: LeaderConnection
    store: StateStore
    replayed: int = 0  # epochs
    _origin: str = field(default="", init=False)  # where the state came from, for messages
    _told: float = field(default=0.0, init=False)
    _rows: int = field(default=0, init=False)

    def bring(self, last: Marker | None) -> None:
        """Bring the store to the epoch of this marker; None: to the beginning.

        InputsLostError, NotDeterministicError, FunctionError, JobError; StoreError, SnapshotError, OSError, ReplyError.
        """
        target = NOTHING if last is None else StateVersion(last.epoch, last.run)
        if self.store.version != target and self.store.version.epoch >= target.epoch:
            self._undone()
        if self.store.version == target:
            return
        epoch = self.store.version.epoch
        near = not self.where.store or target.epoch - epoch <= self.job.snapshot_epochs
        if 0 < epoch < target.epoch and near:
            self._origin = f"the state on this machine is at epoch {epoch}"
            try:
                self._follow(target)
                return
            except _NoWayError as error:
                log.warning("%s: %s; it is recovered from the beginning", self._title, error)
            except InputsLostError:
                if not self.where.store:
                    raise
        restored = self._renew(target.epoch)
        try:
            self._follow(target, restored)
        except _NoWayError as error:
            raise InputsLostError(
                f"{self._title}: its state can't be recovered: {error}. There is no older snapshot that helps, and the"
                f" inputs before are not known: tidelog jobs reset {self.job.name} --from earliest|latest|TIME begins"
                " anew with an empty state"
            ) from None

    # -- where to begin --------------------------------------------------------------------------------------
    @property
    def _title(self) -> str:
        return f"job {self.job.name!r}, partition {self.partition}"

    def _undone(self) -> bool:
        """Take the last epoch back, if that is possible."""
        if self.store.previous is None:
            return False
        self.store.undo()
        return True

    def _renew(self, most: int) -> bool:
        """The newest good snapshot up to an epoch, or an empty state; whether it is a snapshot."""
        path, where = self.store.path, self.where
        self.store.close()
        self._origin = "there is no snapshot"
        if where.store and most:
            from tidelog.jobs import snapshots  # here: it loads fsspec

            def fill(into: Path) -> None:
                url, name, at = where.store, self.job.name, self.partition
                if not snapshots.restore(url, name, where.generation, at, into, most, published=self._published):
                    raise _NoneError

            try:
                self.store = StateStore.create(path, generation=where.generation, cache=where.cache, fill=fill)
                self._origin = f"the newest good snapshot is of epoch {self.store.version.epoch}"
                return True
            except snapshots.SnapshotError as error:
                text = f"{self._title}: its state is not recovered yet: {error}"
                raise StoreError(text) from error
            except _NoneError:
                self._origin = f"there is no snapshot in {where.store}"
        self.store = StateStore.create(path, generation=where.generation, cache=where.cache)
        return False

    def _published(self, epoch: int, run: str) -> bool:
        """Whether this run published this epoch, as far as the log tells."""
        marker, _ = self._find(epoch)
        return marker is None or marker.run == run

    def _follow(self, target: StateVersion, restored: bool = False) -> None:
        """Replay from the store's version to ``target``. _NoWayError where the log does not lead there."""
        version = self.store.version
        if version.epoch > target.epoch:
            if not self._undone():
                raise _NoWayError(f"its state is at epoch {version.epoch}, which was not published")
            self._follow(target, restored)
            return
        if version.epoch:
            marker, first = self._find(version.epoch)
            if marker is not None and marker.run != version.run:  # it was not published
                if not self._undone():
                    raise _NoWayError(f"epoch {version.epoch} of its state was never published")
                self._follow(target, restored)
                return
            if marker is None and not restored:
                raise _NoWayError(f"the replay log has no epoch {version.epoch}, where its state is")
        else:
            _, first = self._find(0)
        if version.epoch == target.epoch:
            return
        if first is None or first[0] != version.epoch + 1:
            begins = "is empty" if first is None else f"begins with epoch {first[0]}"
            raise _NoWayError(f"the replay log {begins}, and {self._origin}")
        began = version.epoch
        for marker in self._markers(first[1], target.epoch):
            self._replay(marker)
            self._tell(began, marker.epoch, target.epoch)
        if self.store.version != target:
            raise _NoWayError(f"the replay log ends with epoch {self.store.version.epoch}, before epoch {target.epoch}")

    # -- the log ---------------------------------------------------------------------------------------------
    def _find(self, epoch: int) -> tuple[Marker | None, tuple[int, StreamId] | None]:
        """The marker of an epoch, None if the log has none; epoch and ID of the one behind it."""
        key, end = keys.log(self.job.name, self.partition), "+"
        behind: tuple[int, StreamId] | None = None
        while True:
            (page,) = checked(self.servers.ask(calls.trevrange(key, end, "-", PAGE)))
            for entry in page:
                marker = read_marker(key, entry)
                if marker.generation < self.where.generation:
                    return None, behind
                if marker.generation == self.where.generation:
                    if marker.epoch <= epoch:
                        return marker if marker.epoch == epoch else None, behind
                    behind = marker.epoch, entry.id
            if len(page) < PAGE:
                return None, behind
            end = f"({page[-1].id}"

    def _markers(self, start: StreamId, last: int) -> Iterator[Marker]:
        """The markers from an ID on, up to an epoch. _NoWayError where one is missing."""
        key, begin, before = keys.log(self.job.name, self.partition), str(start), None
        while True:
            (page,) = checked(self.servers.ask(calls.trange(key, begin, "+", PAGE)))
            for entry in page:
                marker = read_marker(key, entry)
                if marker.generation != self.where.generation or marker.epoch > last:
                    return
                if before is not None and marker.epoch != before + 1:
                    raise _NoWayError(f"in the replay log, epoch {marker.epoch} follows on epoch {before}")
                before = marker.epoch
                yield marker
            if len(page) < PAGE:
                return
            begin = f"({page[-1].id}"

    # -- an epoch again --------------------------------------------------------------------------------------
    def _replay(self, marker: Marker) -> None:
        place = CallContext(self.job, self.partition, marker.epoch, marker.now_ms, ranges(self.inputs, marker.inputs))
        rows = [self._reread(place, marker, name, span) for name, span in marker.inputs.items() if span.rows]
        changes = self.store.begin(marker.now_ms)
        made = FunctionCalls(place, _dropped, changes, states(self.job))
        try:
            if marker.inputs:
                rows = [made.decoded(one) for one in rows]
                pieces = recorded(rows, marker.calls) if marker.calls else cut(rows, marker.merge, marker.max_rows)
                made.run(rows, pieces)
            else:
                made.run_empty()
        except FunctionError as error:
            raise FunctionError(
                f"{error}\nThat was in recovery: the same entries were processed without an error when epoch"
                f" {marker.epoch} was published, by version {marker.version} of the function"
            ) from None
        except JobError as error:
            raise JobError(f"{place}: its marker in the replay log does not fit what was read: {error}") from None
        digest = self.store.commit(changes, marker.epoch, marker.run, position(marker.inputs))
        self.replayed += 1
        self._rows += sum(span.rows for span in marker.inputs.values())
        if digest != marker.digest:
            self._differs(place, marker)

    def _differs(self, place: CallContext, marker: Marker) -> None:
        """Rule 3."""
        if marker.version != self.job.version:
            log.warning(
                "%s: the function, in its version %s, changes the state in another way than version %s did",
                place, self.job.version, marker.version,
            )  # fmt: skip
            return
        self.store.undo()
        raise NotDeterministicError(
            f"{place}: the function is not deterministic: called again with the same entries, it changed the state in"
            f" another way than when the epoch was published. It must not depend on the clock, on chance, on the order"
            f" of a set, or on anything but its batch and its state (batch.now is a time that it may use). Nor may code"
            f" have changed that is not part of version {marker.version}: what the module imports from outside of its"
            f" own directory\n"
            f"{place.ranges}"
        )

    def _reread(self, place: CallContext, marker: Marker, name: str, span: InputSpan) -> InputRows:
        """The rows of one input as the function got them."""
        one = self.inputs.get(name)
        if one is None:
            raise JobError(
                f"{place}: the epoch has read topic {name!r}, which the job does not read any more, so its state can't"
                f" be recovered: declare it as an input again, or reset the job (tidelog jobs reset {self.job.name})"
            )

        def lost(what: str) -> InputsLostError:
            return InputsLostError(
                f"{place}: {what} are gone, and they are needed to recover the state: {self._origin}."
                f" Retention must keep them until a snapshot covers them: overflow='protect' for topic {name!r}. What"
                f" is lost can't be made again: tidelog jobs reset {self.job.name} --from earliest|latest|TIME begins"
                " anew"
            )

        rows = one.reread(self.servers, span, lost)
        skipped = set(marker.skipped.get(name, ()))
        if skipped:
            rows = rows.without([at for at, text in enumerate(rows.ids.to_pylist()) if text in skipped])
        return rows

    def _tell(self, began: int, epoch: int, target: int) -> None:
        """Say on the server how far it is."""
        if time.monotonic() < self._told + TELL:
            return
        self._told = time.monotonic()
        said = {"from": began, "epoch": epoch, "to": target, "rows": self._rows}
        key = keys.recovery(self.job.name, self.partition)
        self.servers.ask(Call(("SET", key, msgspec.json.encode(said), "PX", TOLD_MS), bool))


def states(job: Job) -> Callable[[StateChanges], Any] | None:
    """What makes the State that the job's function gets; None if it has none."""
    kind = job.state
    return None if kind is None else lambda changes: State(changes, kind, job=job.name)


def _dropped(returned: Any) -> None:
    """What a replayed call returns was published before."""
