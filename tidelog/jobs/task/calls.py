"""The calls of a batch job's function, for one epoch of one partition.

Rule 1: a call counts once its result was taken: what it has done to the state before that is dropped with it.
Rule 2: with ``on_error="deadletter"``, a call that fails is made again with each half of its rows, until the row that
        fails is alone: it is left out. Rows whose values are not of their type are left out before. What is wrong with
        the function itself, such as a table for a topic that is no output or a state read as another type, leaves
        nothing out: that is FunctionError.
Rule 3: a state that could not be read from the disk is no matter of rows either, whatever the function made of that:
        the task fails by StoreError.
Rule 4: an error of the function is shown with the traceback of the function, without our frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidelog.jobs.batch import MicroBatch
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError
from tidelog.jobs.store import StateChanges, StateError, StateValueError, StoreError
from tidelog.jobs.task.rows import CallRange, InputRows
from tidelog.operating.errortexts import traceback_of
from tidelog.topics import Topic


class OutputRowError(ValueError):
    """What the function returned has a row that can't become an entry: a matter of the rows that it was given."""


@dataclass(frozen=True)
class CallContext:
    """Where a call happens, for messages and for batches."""

    job: Job
    partition: int
    epoch: int
    now_ms: int
    ranges: str  # what the epoch reads, for people

    def __str__(self) -> str:
        return f"job {self.job.name!r}, partition {self.partition}, epoch {self.epoch}"


@dataclass(frozen=True)
class SkippedRow:
    """A row that was left out."""

    topic: Topic[Any]
    id: str
    error: BaseException


@dataclass
class FunctionCalls:
    """Makes the calls. ``take`` is given what each returns; RowError of it counts as the function's.

    state: makes the State of changes; None: the job has none.
    """

    place: CallContext
    take: Callable[[Any], None]
    changes: StateChanges | None = None
    state: Callable[[StateChanges], Any] | None = None
    bisects: bool = False  # Rule 2
    ends: list[tuple[str, str]] = field(default_factory=list)  # of the calls that counted: topic, last ID
    skipped: list[SkippedRow] = field(default_factory=list)
    bisected: bool = False

    def run(self, rows: Sequence[InputRows], pieces: Sequence[CallRange]) -> None:
        """Call the function for each piece. FunctionError."""
        for piece in pieces:
            self._halves(rows[piece.input], piece.start, piece.stop)

    def run_empty(self) -> None:
        """Call the function of a job without inputs. FunctionError."""
        place, none = self.place, pa.nulls(0, pa.string())
        empty = MicroBatch(None, pa.table({}), place.partition, place.epoch, place.now_ms, none)
        try:
            self._call(empty)
        except _FailedCallError as failed:
            raise self._error(failed.error, "an empty batch") from failed.error

    def decoded(self, rows: InputRows) -> InputRows:
        """Rows without those whose values are not of their type. FunctionError if the job stops on errors."""
        if not rows.bad:
            return rows
        for at, error in sorted(rows.bad.items()):
            if not self.bisects:
                raise FunctionError(
                    f"{self.place}: {error}. Mend what writes topic {rows.topic.name!r}, or declare the job with"
                    f" on_error='deadletter', which leaves such entries out\n{self.place.ranges}"
                ) from None
            self.skipped.append(SkippedRow(rows.topic, rows.ids[at].as_py(), error))
        return rows.without(rows.bad)

    def _halves(self, rows: InputRows, first: int, last: int) -> None:
        waiting = [(first, last)]
        while waiting:
            start, stop = waiting.pop()
            try:
                self._call(self._batch(rows, start, stop))
            except _FailedCallError as failed:
                if not self.bisects or failed.lasts:
                    what = f"{stop - start:,} entries of topic {rows.topic.name!r},"
                    what = f"{what} {rows.ids[start]} to {rows.ids[stop - 1]}"
                    raise self._error(failed.error, what) from failed.error
                self.bisected = True
                if stop - start == 1:
                    self.skipped.append(SkippedRow(rows.topic, rows.ids[start].as_py(), failed.error))
                else:
                    middle = (start + stop) // 2
                    waiting += ((middle, stop), (start, middle))
            else:
                self.ends.append((rows.topic.name, rows.ids[stop - 1].as_py()))

    def _batch(self, rows: InputRows, start: int, stop: int) -> MicroBatch:
        number = stop - start
        return MicroBatch(
            rows.topic, rows.table.slice(start, number), self.place.partition, self.place.epoch, self.place.now_ms,
            rows.ids.slice(start, number),
        )  # fmt: skip

    def _call(self, batch: MicroBatch) -> None:
        """One call, which counts if it does not raise (Rule 1)."""
        job = self.place.job
        savepoint = self.changes
        if self.changes is not None and self.bisects:
            savepoint = self.changes.child()
        arguments: tuple[Any, ...] = (batch,)
        if self.state is not None and savepoint is not None:
            arguments = batch, self.state(savepoint)
        try:
            returned = job.function(*arguments)
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's function raises
            self._see_disk()
            raise _FailedCallError(error) from None
        self._see_disk()
        try:
            self.take(returned)
        except OutputRowError as error:
            raise _FailedCallError(error) from None
        if savepoint is not None and savepoint is not self.changes:
            savepoint.merge()

    def _see_disk(self) -> None:
        """Rule 3."""
        if self.changes is not None and self.changes.failed is not None:
            raise self.changes.failed

    def _error(self, error: BaseException, what: str) -> FunctionError:
        if isinstance(error, OutputRowError):
            return FunctionError(f"{self.place}: what the function returned for {what} can't be written: {error}\n"
                                 f"{self.place.ranges}")  # fmt: skip
        return FunctionError(
            f"{self.place}: the function failed with {what}\n{self.place.ranges}\n{user_trace(error)}"
        )  # fmt: skip


class _FailedCallError(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

    @property
    def lasts(self) -> bool:
        """Whether it is the function's fault, whatever the rows."""
        return isinstance(self.error, StateError) and not isinstance(self.error, StateValueError)


def user_trace(error: BaseException) -> str:
    """The traceback of an error, from the user's function on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return traceback_of(error.with_traceback(trace)).rstrip()
