"""The status of a flow process on its tidelog server, for tools that do not connect to its HTTP API.

    flows:NAME:process:ID = {"version": 1, "process": ID, "at": ..., "flows": [...]}

A process writes it every few seconds (``publisher``); it expires if the process dies. The desired state lists the IDs.

Rule 1: nothing depends on it. It is read as data of an unknown author: values of other types make it unreadable.
Rule 2: it has at most SIZE bytes. Flows that do not fit have no graph and no connectors in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from tidelog.client.steps import Steps, checked
from tidelog.transport.call import Call

SIZE: Final = 512 * 1024  # bytes
PROCESSES: Final = 32  # of a name: those that have started last


class PublishedInstance(msgspec.Struct, frozen=True):
    """An instance of a flow."""

    alias: str
    status: str


class PublishedReason(msgspec.Struct, frozen=True):
    """Why a source does not send."""

    reason: str
    since: int = 0  # ms since 1970; 0: unknown
    detail: str = ""


class PublishedSource(msgspec.Struct, frozen=True):
    """A source of an instance. Without reasons, it may send."""

    alias: str  # of the instance
    source: str
    reasons: tuple[PublishedReason, ...] = ()


class PublishedConnector(msgspec.Struct, frozen=True):
    """A connector. ``counts``: by side, ``source`` or ``sink``."""

    alias: str
    type: str = ""
    status: str = ""
    connectivity: str = ""
    source: bool = False
    sink: bool = False
    error: str = ""
    counts: Mapping[str, Mapping[str, int]] = {}


class PublishedEntity(msgspec.Struct, frozen=True):
    """A box of the graph."""

    name: str
    kind: Literal["source", "operator", "sink"]
    type: str = ""
    pipeline: str = ""
    counts: Mapping[str, int] = {}
    waiting: int = 0


class PublishedChannel(msgspec.Struct, frozen=True):
    """An edge of the graph."""

    name: str
    start: str = msgspec.field(name="from")
    to: str
    from_kind: Literal["source", "operator", "sink"]
    to_kind: Literal["source", "operator", "sink"]
    port: str = "out"
    authoritative: bool = True
    events: int = 0
    waiting: int = 0
    batches: int = 0
    capacity: int = 0
    dropped: int = 0


class PublishedGraph(msgspec.Struct, frozen=True):
    """The graph of a flow."""

    entities: tuple[PublishedEntity, ...] = ()
    channels: tuple[PublishedChannel, ...] = ()


class PublishedFlow(msgspec.Struct, frozen=True):
    """A flow of a process. ``unsettled``: events in flight, the oldest since ``oldest`` (ms since 1970)."""

    alias: str
    status: str
    error: str = ""
    dead_letters: str = ""  # its dead-letter queue; empty: none
    unsettled: int = 0
    oldest: int = 0
    where: Mapping[str, int] = {}
    stored: Mapping[str, int] = {}
    instances: tuple[PublishedInstance, ...] = ()
    connectors: tuple[PublishedConnector, ...] = ()
    sources: tuple[PublishedSource, ...] = ()
    graph: PublishedGraph | None = None  # None: it does not fit, or the flow has not started

    def total(self, side: str, counter: str) -> int | None:
        """Return a counter of all connectors on a side, None if there are none."""
        found = [each.counts.get(side, {}) for each in self.connectors if getattr(each, side)]
        return sum(each.get(counter, 0) for each in found) if found else None


class FlowProcessStatus(msgspec.Struct, frozen=True):
    """A process and its flows. Times in ms since 1970, by the clock of the process."""

    version: int = 1
    process: str = ""
    at: int = 0
    started: int = 0
    flows: tuple[PublishedFlow, ...] = ()


def key_of(name: str, process: str) -> str:
    """Return the key of the status of a process. name: of the desired state."""
    return f"flows:{name}:process:{process}"


def decoded(text: bytes | None) -> FlowProcessStatus | None:
    """Return a status; None if there is none, or if it is not one of this version."""
    try:
        found = msgspec.json.decode(text, type=FlowProcessStatus) if text else None
    except (ValueError, RecursionError):
        return None
    return found if found is not None and found.version == 1 else None


def read(name: str, processes: Mapping[str, int]) -> Steps[list[FlowProcessStatus]]:
    """Read the statuses of the processes that live. processes: of the desired state."""
    newest = sorted(processes, key=lambda each: processes[each])[-PROCESSES:]
    calls: list[Call[Any]] = [Call(("GETRANGE", key_of(name, each), 0, 2 * SIZE), bytes) for each in newest]
    texts = checked((yield calls)) if calls else []
    return [found for text in texts if (found := decoded(text)) is not None]


def write(name: str, status: FlowProcessStatus, kept_ms: int) -> Call[Any]:
    """Return the call that stores a status for this many ms."""
    return Call(("SET", key_of(name, status.process), msgspec.json.encode(status), "PX", kept_ms), bool)


def remove(name: str, process: str) -> Call[Any]:
    """Return the call that deletes the status of a process."""
    return Call(("DEL", key_of(name, process)), int)


def digest(key: str) -> Call[bytes | None]:
    """Return the call for a digest of a value, which changes with the value."""
    return Call(("DIGEST", key), lambda reply: reply)


