"""``Marker``: an entry of a job's replay log. It is published in one step with the outputs of its epoch.

    epoch        9                 run          5f0c...       the run of the engine that published it
    generation   1                 version      9a3e...       hash of the function's source, informational
    inputs       {"clicks": ["1700000000000.0", "1700000000100.2", 812]}       after, up to (included), entries
    now          1700000000100     rows         800           output rows
    digest       c4...             of the changes of the state, hexadecimal; empty without state
    skipped      {"clicks": ["1700000000050.0"]}    entries sent to the dead-letter queue; empty if there are none
    calls        [["clicks", "1700000000049.0"], ...]  the last entry of each call, if a batch was bisected
    merge        inputs        max_rows       100000       else: how the input was divided into calls

Rule 1: The last marker of a partition determines its position. Spark's offsets, leases and status do not.
Rule 2: A marker contains everything that a replay needs to call the function again with the same arguments in the same
        order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.client.entries import Entry, StreamId
from tidelog.jobs.declare import Merge
from tidelog.jobs.errors import JobError


@dataclass(frozen=True)
class InputSpan:
    """The entries of one input that were read: those after one ID up to another."""

    after: StreamId
    end: StreamId  # included
    rows: int


@dataclass(frozen=True)
class Marker:
    """The record of one epoch in one partition."""

    epoch: int
    run: str
    generation: int
    version: str
    inputs: Mapping[str, InputSpan]  # by topic
    now_ms: int
    rows: int  # output rows
    digest: str
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)  # IDs by topic
    calls: Sequence[tuple[str, str]] = ()  # topic, last ID of the call; empty: by ``merge`` and ``max_rows``
    merge: Merge = "inputs"  # as the job declared it
    max_rows: int = 0  # per call; 0: no limit

    def fields(self) -> dict[str, str]:
        """Return the fields of the entry."""
        spans = {name: (str(span.after), str(span.end), span.rows) for name, span in self.inputs.items()}
        return {
            "epoch": str(self.epoch), "run": self.run, "generation": str(self.generation), "version": self.version,
            "inputs": _json(spans), "now": str(self.now_ms), "rows": str(self.rows), "digest": self.digest,
            "skipped": _json(self.skipped) if self.skipped else "", "calls": _json(self.calls) if self.calls else "",
            "merge": self.merge, "max_rows": str(self.max_rows),
        }  # fmt: skip


def read_marker(key: str, entry: Entry) -> Marker:
    """Return the marker in an entry of the log ``key``. Raises JobError if the entry is not a marker."""
    try:
        fields = {name.decode(): value.decode() for name, value in entry.pairs}
        spans = msgspec.json.decode(fields["inputs"], type=dict[str, tuple[str, str, int]])
        return Marker(
            int(fields["epoch"]), fields["run"], int(fields["generation"]), fields["version"],
            {
                topic: InputSpan(StreamId.parse(after), StreamId.parse(end), rows)
                for topic, (after, end, rows) in spans.items()
            },
            int(fields["now"]), int(fields["rows"]), fields["digest"],
            msgspec.json.decode(fields["skipped"], type=dict[str, list[str]]) if fields["skipped"] else {},
            msgspec.json.decode(fields["calls"], type=list[tuple[str, str]]) if fields["calls"] else (),
            "time" if fields["merge"] == "time" else "inputs", int(fields["max_rows"]),
        )  # fmt: skip
    except (KeyError, ValueError, RecursionError) as error:
        raise JobError(f"the entry {entry.id} of {key!r} is not a marker of a replay log: {error!r}") from None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
