"""Converts the error that ended a frame job's query, which Spark provides as text, to an error of jobs.

The text contains Python tracebacks inside the JVM's stack traces.

Rule 1: If retrying does not help, the error is a JobError; an error that may be temporary is a QueryError.
"""

from __future__ import annotations

import re
from typing import Final

from tidelog.jobs.errors import FunctionError, InputsLostError, JobError, SupersededError

SUPERSEDED: Final = (
    "tidelog.spark.sink.StaleError", "tidelog.spark.sink.OtherBatchError", "CONCURRENT_STREAM_LOG_UPDATE",
)  # fmt: skip
LOST: Final = ("tidelog.spark.offsets.DataLossError", "tidelog.spark.offsets.TopicChangedError")
#: Errors of the source, the sink and the decoder that require a change of the job or its input.
WRONG: Final = (
    "tidelog.codecs.recordtypes.UndecodableError", "tidelog.arrow.columns.MalformedError",
    "tidelog.arrow.columns.MistakenColumnError", "tidelog.spark.commands.RowError",
    "tidelog.spark.optionvalues.OptionError", "tidelog.spark.offsets.NoOffsetError",
    "tidelog.spark.offsets.NoStreamError",
    "tidelog.topics.settings.TopicMismatchError", "tidelog.topics.settings.TopicError", "tidelog.jobs.errors.JobError",
)  # fmt: skip
_PASSING: Final = ("tidelog.", "redis.", "ConnectionError", "TimeoutError", "OSError", "BrokenPipeError", "EOFError")
_TRACEBACK: Final = "Traceback (most recent call last):"


class QueryError(Exception):
    """A query ended for a reason that may be temporary, such as an unreachable server or a lost executor."""


def explained(name: str, text: str) -> Exception:
    """Return the error of the job ``name`` for the text of Spark's exception."""
    where = f"job {name!r}: "
    for kinds, error in ((SUPERSEDED, SupersededError), (LOST, InputsLostError), (WRONG, JobError)):
        for kind in kinds:
            if (at := text.find(kind)) >= 0:
                return error(where + _from(text, at))
    traceback = last_traceback(text)  # the last one is the cause of the others
    if traceback and not traceback.rpartition("\n")[2].startswith(_PASSING):
        return FunctionError(f"{where}its function failed in a task:\n{traceback}")
    return QueryError(where + text.split("\n\nJVM stacktrace")[0])


def last_traceback(text: str) -> str:
    """Return the last traceback in a text, up to the line of its error; empty if there is none."""
    found = ""
    lines: list[str] | None = None  # lines of the current traceback
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
    """Return the line of an error, without the class name if it is Python's."""
    line = text[at:].partition("\n")[0].strip()
    return re.sub(r"^tidelog\.[\w.]+: ", "", line)
