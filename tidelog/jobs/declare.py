"""``@job``: declares a function as a job, with its input and output topics and its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Literal

from tidelog.history import choice
from tidelog.jobs.code import version_of
from tidelog.jobs.errors import JobError
from tidelog.options.start import StartPosition
from tidelog.topics import Topic
from tidelog.topics.failureactions import DeadLetter, Halt

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Kind = Literal["batch", "frame"]
HALT: Final = (Halt(),)
Merge = Literal["inputs", "time"]


@dataclass(frozen=True, eq=False)
class Job:
    """A function and its declaration. Raises JobError if the declaration is invalid."""

    function: Callable[..., Any]
    name: str
    kind: Kind
    inputs: tuple[Topic[Any], ...]
    outputs: tuple[Topic[Any], ...]
    state: type[Any] | None = None  # type of the values; None: no state
    partitions: int | None = None  # of a job without inputs
    every: float | None = None  # seconds; of a job without inputs
    start: str = "earliest"
    merge: Merge = "inputs"
    max_rows: int = 100_000
    max_bytes: int = 64 << 20
    on_error: Sequence[Any] = HALT
    snapshot_every: float = 300.0  # seconds
    snapshot_epochs: int = 1000
    keep: int = 3
    timeout: float = 600.0  # seconds
    options: dict[str, str] = field(default_factory=dict)  # of Spark, for a frame job; of a batch job: history

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            raise JobError(f"job {self.name!r}: {wrong}")

    def __call__(self, *args: Any) -> Any:
        """Call the function itself."""
        return self.function(*args)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    @property
    def stateful(self) -> bool:
        return self.state is not None

    @property
    def dead_letter(self) -> DeadLetter | None:
        """What happens to an entry that fails; None: the job stops."""
        (action,) = self.on_error
        return action if isinstance(action, DeadLetter) else None

    @property
    def is_source(self) -> bool:
        return not self.inputs

    @cached_property
    def version(self) -> str:
        """A hash of the source of the function, its module, and the modules that it imports from the same directory.

        See ``tidelog.jobs.code``.
        """
        return version_of(self.function)

    def _wrong(self) -> str:
        if not NAME.fullmatch(self.name):
            return "a name must have 1 to 100 letters, digits, '_', '-' and '.'"
        if self.merge not in ("inputs", "time"):
            return f"merge must be 'inputs' or 'time': {self.merge!r}"
        if not isinstance(self.on_error, (list, tuple)) or list(map(type, self.on_error)) not in ([Halt], [DeadLetter]):
            return (
                "on_error must be [Halt()] or [DeadLetter()]: a job does not support Skip, Park and Pause. It retries"
                f" temporary failures itself, so Retry is not needed either: {self.on_error!r}"
            )
        for what in ("max_rows", "max_bytes", "snapshot_epochs", "keep"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                return f"{what} must be a whole number from 1: {value!r}"
        for what in ("snapshot_every", "timeout"):
            if not getattr(self, what) > 0:
                return f"{what} must be more than 0 seconds: {getattr(self, what)!r}"
        try:
            StartPosition(self.start)
        except ValueError as error:
            return str(error)
        history = self.options.get("history", choice.AUTO)
        if self.kind == "batch" and history not in choice.CHOICES:
            return f"history must be one of {', '.join(choice.CHOICES)}: {history!r}"
        return self._wrong_topics() or (self._wrong_frame() if self.kind == "frame" else self._wrong_source())

    def _wrong_topics(self) -> str:
        for what, topics in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not all(isinstance(topic, Topic) for topic in topics):
                return f"{what} must be topics"
            names = [topic.name for topic in topics]
            if len(set(names)) < len(names):
                return f"a topic is named twice in {what}"
        return "" if self.inputs or self.outputs or self.stateful else "it has no inputs, no outputs and no state"

    def _wrong_frame(self) -> str:
        if not (self.inputs and self.outputs):
            return "a frame job must have inputs and outputs"
        if self.stateful or self.dead_letter is not None:
            return "the state of a frame job is Spark's, and it stops on errors: remove state and on_error"
        return ""

    def _wrong_source(self) -> str:
        if not self.is_source and (self.partitions is not None or self.every is not None):
            return "partitions and every are for jobs without inputs: this one has as many partitions as its inputs"
        if self.is_source and (self.partitions or 0) < 1:
            return "a job without inputs needs partitions=, from 1"
        if self.is_source and not (self.every or 0) > 0:
            return "a job without inputs needs every=, the seconds between two calls"
        return ""


def job(
    *,
    inputs: Sequence[Topic[Any]] = (),
    outputs: Sequence[Topic[Any]] = (),
    state: type[Any] | bool | None = None,
    name: str | None = None,
    partitions: int | None = None,
    every: timedelta | float | None = None,
    start: str = "earliest",
    merge: Merge = "inputs",
    max_rows: int = 100_000,
    max_bytes: int = 64 << 20,
    on_error: Sequence[Any] = HALT,
    snapshot_every: timedelta | float = 300.0,
    snapshot_epochs: int = 1000,
    keep: int = 3,
    timeout: timedelta | float = 600.0,
    options: dict[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Job]:
    """Declare a job.

    >>> @job(inputs=[clicks], outputs=[totals], state=int)
    ... def count(batch: MicroBatch, state: State[int]) -> dict[Topic, pa.Table]: ...

    A *batch job* takes a MicroBatch, and a State if it has one, and returns a table for each output, ``{topic:
    pa.Table}``, or None. A *frame job* is one whose parameters are annotated as DataFrames, one for each input, in
    order; it returns a DataFrame, or ``{topic: DataFrame}`` for several outputs.

    inputs, outputs: topics with equal numbers of partitions (every partition reads a topic with one completely). state:
    the type of the values in the state: bytes (also True), str, int, float, or a type that msgspec can encode.
    partitions, every: of a job without inputs: each partition is called with an empty batch after this many seconds.
    start: where a new job starts: ``earliest``, ``latest``, an ID, or a time in ISO 8601 with its zone. merge:
    ``inputs`` calls the function for one input after the other; ``time`` merges them by ID. max_rows, max_bytes: limits
    of a batch in one partition. on_error: ``[Halt()]``: the job stops; or ``[DeadLetter()]``: an entry that fails goes
    to the dead-letter queue. snapshot_every, snapshot_epochs: seconds or epochs after which a snapshot of the state is
    created, whichever comes first. keep: how many snapshots of each partition are retained. timeout: limit of an epoch
    of a batch job, in seconds, including recovery. A longer epoch is cancelled, because it blocks Spark's cores, and
    retried; its recovery continues where it stopped. options: options of Spark's readers and writers, for a frame job.
    A batch job has the option ``history`` of the reader: ``auto``, ``direct``, or ``server``.

    Raises JobError if the declaration is invalid.
    """

    def declare(function: Callable[..., Any]) -> Job:
        return Job(
            function, name or function.__name__, _kind(function), tuple(inputs), tuple(outputs),
            bytes if state is True else state or None, partitions, _seconds(every), start, merge, max_rows, max_bytes,
            tuple(on_error) if isinstance(on_error, list) else on_error, _seconds(snapshot_every) or 0.0,
            snapshot_epochs, keep, _seconds(timeout) or 0.0, dict(options or {}),
        )  # fmt: skip

    return declare


def _kind(function: Callable[..., Any]) -> Kind:
    """Determine the kind from the annotations, which may be strings, since pyspark may not be installed."""
    annotations = [str(each.annotation) for each in inspect.signature(function).parameters.values()]
    return "frame" if annotations and all("DataFrame" in each for each in annotations) else "batch"


def _seconds(value: timedelta | float | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value
