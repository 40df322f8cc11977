"""Calls a batch job's function, for one epoch of one partition.

Rule 1: A call counts once its result was accepted. If it is rejected, the call's changes of the state are dropped.
Rule 2: With ``on_error=[DeadLetter()]``, a call that fails is repeated with each half of its rows, until the failing
        row is isolated and skipped. Rows with values that are not of their type are skipped first. An error of the
        function itself, such as a table for a topic that is not an output, or a state read as another type, skips
        nothing: it raises FunctionError.
Rule 3: A failure to read the state from the disk is not caused by rows either, even if the function suppresses it: the
        task fails with StoreError.
Rule 4: An error of the function is shown with its traceback from the function on, without frames of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidelog.jobs.batch import MicroBatch
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError
from tidelog.jobs.state import State
from tidelog.jobs.store import StateChanges, StateError, StateValueError, StoreError
from tidelog.jobs.task.rows import CallRange, InputRows
from tidelog.operating.errortexts import traceback_of
from tidelog.topics import Topic


class OutputRowError(ValueError):
    """The function returned a row that cannot become an entry; attributed to the rows of the call."""


@dataclass(frozen=True)
class CallContext:
    """The context of a call, for error texts and batches."""

    job: Job
    partition: int
    epoch: int
    now_ms: int
    ranges: str  # what the epoch reads, for error texts

    def __str__(self) -> str:
        return f"job {self.job.name!r}, partition {self.partition}, epoch {self.epoch}"


@dataclass(frozen=True)
class SkippedRow:
    """A row that was skipped."""

    topic: Topic[Any]
    id: str
    error: BaseException


@dataclass
class FunctionCalls:
    """Makes the calls. ``take`` gets each result; an OutputRowError from it is an error of the function."""

    context: CallContext
    take: Callable[[Any], None]
    changes: StateChanges | None = None  # None: the job has no state
    bisects: bool = False  # Rule 2
    ends: list[tuple[str, str]] = field(default_factory=list)  # topic and last ID of each accepted call
    skipped: list[SkippedRow] = field(default_factory=list)
    bisected: bool = False

    def run(self, rows: Sequence[InputRows], pieces: Sequence[CallRange]) -> None:
        """Call the function for each range. Raises FunctionError."""
        for piece in pieces:
            self._halves(rows[piece.input], piece.start, piece.stop)

    def run_empty(self) -> None:
        """Call the function of a job without inputs. Raises FunctionError."""
        context, none = self.context, pa.nulls(0, pa.string())
        empty = MicroBatch(None, pa.table({}), context.partition, context.epoch, context.now_ms, none)
        try:
            self._call(empty)
        except _FailedCallError as failed:
            raise self._error(failed.error, "an empty batch") from failed.error

    def decoded(self, rows: InputRows) -> InputRows:
        """Return the rows whose values have the right types. Raises FunctionError if the job stops on errors."""
        if not rows.bad:
            return rows
        for at, error in sorted(rows.bad.items()):
            if not self.bisects:
                raise FunctionError(
                    f"{self.context}: {error}. Correct the producer of topic {rows.topic.name!r}, or declare the job"
                    f" with on_error=[DeadLetter()], which skips such entries\n{self.context.ranges}"
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
                if not self.bisects or failed.is_general:
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
            rows.topic, rows.table.slice(start, number), self.context.partition, self.context.epoch,
            self.context.now_ms, rows.ids.slice(start, number),
        )  # fmt: skip

    def _call(self, batch: MicroBatch) -> None:
        """Make one call, which counts if it does not raise (Rule 1)."""
        job = self.context.job
        savepoint = self.changes
        if self.changes is not None and self.bisects:
            savepoint = self.changes.child()
        arguments: tuple[Any, ...] = (batch,)
        if job.state is not None and savepoint is not None:
            arguments = batch, State(savepoint, job.state, job=job.name)
        try:
            returned = job.function(*arguments)
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
            self._check_disk()
            raise _FailedCallError(error) from None
        self._check_disk()
        try:
            self.take(returned)
        except OutputRowError as error:
            raise _FailedCallError(error) from None
        if savepoint is not None and savepoint is not self.changes:
            savepoint.merge()

    def _check_disk(self) -> None:
        """Raise the error in reading the state, if there was one (Rule 3)."""
        if self.changes is not None and self.changes.failed is not None:
            raise self.changes.failed

    def _error(self, error: BaseException, what: str) -> FunctionError:
        if isinstance(error, OutputRowError):
            return FunctionError(f"{self.context}: the result of the function for {what} cannot be written: {error}\n"
                                 f"{self.context.ranges}")  # fmt: skip
        return FunctionError(
            f"{self.context}: the function failed with {what}\n{self.context.ranges}\n{user_trace(error)}"
        )  # fmt: skip


class _FailedCallError(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

    @property
    def is_general(self) -> bool:
        """Return whether the function is at fault, regardless of the rows."""
        return isinstance(self.error, StateError) and not isinstance(self.error, StateValueError)


def user_trace(error: BaseException) -> str:
    """Return the traceback of an error, from the user's function on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return traceback_of(error.with_traceback(trace)).rstrip()
