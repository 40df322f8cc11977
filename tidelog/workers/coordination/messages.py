"""The messages of workers in the control stream of their app."""

from __future__ import annotations

from typing import Any, Final

from tidelog.coordination.controlstream import notify
from tidelog.transport.call import Call
from tidelog.workers import keys

SUBJECT: Final = "processor"  # the field that names what a message concerns; empty: the app


def message(app: str, kind: str, worker: str, processor: str = "", partition: int | None = None) -> Call[Any]:
    """Return the call that sends a message. ``kind``: joined, settled, left, dead, released, paused or leader."""
    fields = {"kind": kind, "worker": worker, SUBJECT: processor}
    if partition is not None:
        fields["partition"] = str(partition)
    return notify(keys.control(app), fields)
