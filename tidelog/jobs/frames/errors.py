"""What ended a frame job's query, as an error of jobs. Spark has it as text: Python's tracebacks inside the JVM's.

Rule 1: an error that trying again does not help is a JobError; what may pass is a QueryError.
"""

from __future__ import annotations

import re
from typing import Final

from tidelog.jobs.errors import FunctionError, InputsLostError, JobError, SupersededError

SUPERSEDED: Final = (
    "tidelog.spark.sink.StaleError", "tidelog.spark.sink.OtherBatchError", "CONCURRENT_STREAM_LOG_UPDATE",
)  # fmt: skip
LOST: Final = ("tidelog.spark.offsets.DataLossError", "tidelog.spark.offsets.TopicChangedError")
#: Of the source, the sink and the decoder: the job or its input is to be changed.
WRONG: Final = (
    "tidelog.codecs.recordtypes.UndecodableError", "tidelog.spark.columns.MalformedError",
    "tidelog.spark.columns.MistakenColumnError", "tidelog.spark.commands.RowError",
    "tidelog.spark.optionvalues.OptionError", "tidelog.spark.offsets.NoOffsetError",
    "tidelog.spark.offsets.NoStreamError",
    "tidelog.topics.settings.TopicMismatchError", "tidelog.topics.settings.TopicError", "tidelog.jobs.errors.JobError",
)  # fmt: skip
_PASSING: Final = ("tidelog.", "redis.", "ConnectionError", "TimeoutError", "OSError", "BrokenPipeError", "EOFError")
_TRACEBACK: Final = "Traceback (most recent call last):"


class QueryError(Exception):
    """A query ended for a reason that may pass: a server that did not answer, a lost executor."""


def explained(name: str, text: str) -> Exception:
    """The error of the job ``name``, from the text of Spark's exception."""
    where = f"job {name!r}: "
    for kinds, error in ((SUPERSEDED, SupersededError), (LOST, InputsLostError), (WRONG, JobError)):
        for kind in kinds:
            if (at := text.find(kind)) >= 0:
                return error(where + _from(text, at))
    traceback = last_traceback(text)  # it is the cause of those before
    if traceback and not traceback.rpartition("\n")[2].startswith(_PASSING):
        return FunctionError(f"{where}its function failed in a task:\n{traceback}")
    return QueryError(where + text.split("\n\nJVM stacktrace")[0])


def last_traceback(text: str) -> str:
    """The last traceback in a text, up to the line of its error; empty: there is none. Each line is read once."""
    found = ""
    lines: list[str] | None = None  # of the traceback that is being read
    for line in text.split("\n"):
        if lines is not None and (not line or line[0] in " \t"):
            lines.append(line)
        elif lines is not None and len(lines) > 1 and not line[0].isspace():
            found = "\n".join([*lines, line])
            lines = None
        else:
            lines = [_TRACEBACK] if line.endswith(_TRACEBACK) else None
    return found


def _from(text: str, at: int) -> str:
    """The line of an error: without the name of its class where that is Python's."""
    line = text[at:].partition("\n")[0].strip()
    return re.sub(r"^tidelog\.[\w.]+: ", "", line)
