"""The groups and the dead letters of a flow on its tidelog server: state and reset, with or without a running process.

Each process records the sources of its flows in its desired state (``desired``), so they are known by the flow's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, checked, single
from tidelog.flows.connectors.templates import fixed_text
from tidelog.flows.connectors.tidelog.deadletters import topic_of
from tidelog.flows.spec import FlowSpec
from tidelog.options.start import StartPosition
from tidelog.topics import deadletters

FIRST = StreamId(0, 0)


class FlowSource(msgspec.Struct, frozen=True):
    """A connected source of a flow. ``group`` is empty if the flow's server does not store its position.

    ``dead_letters``: the topic of the flow's dead letters; empty if the flow has no server.
    """

    connector: str
    type: str
    keys: tuple[str, ...] = ()
    group: str = ""
    dead_letters: str = ""


def dead_letter_topic(spec: FlowSpec) -> str:
    """Return the topic of a flow's dead letters."""
    for each in spec.connectors.values():
        if each.type == "dead_letters" and (topic := getattr(each.options, "topic", None)):
            return str(topic)
    return topic_of(spec.name)


def sources_of(spec: FlowSpec) -> list[FlowSource]:
    """Return the connected sources of a flow."""
    connected = {each.source for each in spec.edges}
    letters = dead_letter_topic(spec) if spec.server is not None else ""
    found = []
    for each in spec.connectors.values():
        if each.is_source and each.name in connected:
            options = each.options
            keys, group = getattr(options, "key", ()), getattr(options, "group", None)
            if each.type == "stream" and group and getattr(options, "url", None) is None:
                keys = tuple(fixed_text(key) for key in ((keys,) if isinstance(keys, str) else keys))
                found.append(FlowSource(each.name, each.type, keys, group, letters))
            else:
                found.append(FlowSource(each.name, each.type, dead_letters=letters))
    return found


@dataclass(frozen=True)
class GroupState:
    """A group of a source on one stream. ``position`` is None if the group does not exist yet."""

    connector: str
    stream: str
    group: str
    position: StreamId | None
    lag: int  # entries after the position
    lag_ms: int  # age of the oldest of them, by the server's clock; 0 if there is none
    pending: int

    def plain(self) -> dict[str, Any]:
        """Return the values in a form that JSON can represent."""
        position = None if self.position is None else str(self.position)
        return {**dataclasses.asdict(self), "position": position}


@dataclass(frozen=True)
class GroupReset:
    """The reset of a group: the entries between the old and the new position."""

    state: GroupState
    before: StreamId  # the current position
    after: StreamId  # the new one
    read_again: int  # entries that were read and will be read again
    skipped: int  # entries that will not be read


def states(sources: Sequence[FlowSource]) -> Steps[list[GroupState]]:
    """Return the groups of the sources, with one entry per stream."""
    found = []
    now = yield from single(strings.server_time())
    for source in sources:
        for stream in source.keys if source.group else ():
            (listed,) = checked((yield [calls.tgroup_list(stream)]))
            info = next((each for each in listed if each.name == source.group.encode()), None)
            position = info.offset if info is not None else None
            start = f"({position or FIRST}"
            lag, oldest = checked((yield [calls.tcount(stream, start), calls.trange(stream, start, "+", 1)]))
            age = max(0, now - oldest[0].id.ms) if oldest else 0
            pending = info.pending if info is not None else 0
            found.append(GroupState(source.connector, stream, source.group, position, lag, age, pending))
    return found


def dead_letters(sources: Sequence[FlowSource]) -> Steps[dict[str, int | None]]:
    """Return the number of open dead letters of a flow by topic; None if the topic can't be read."""
    return deadletters.open_counts(each.dead_letters for each in sources if each.dead_letters)


def preview(sources: Sequence[FlowSource], start: StartPosition) -> Steps[list[GroupReset]]:
    """Return what ``reset`` would do. Groups that do not exist are omitted."""
    found = []
    for state in (yield from states(sources)):
        if state.position is None:
            continue
        target = start.after
        if target is None:
            target = (yield from single(calls.tinfo(state.stream))).last
        again, skipped = checked((yield [
            calls.tcount(state.stream, f"({target}", str(state.position)),
            calls.tcount(state.stream, f"({state.position}", str(target)),
        ]))  # fmt: skip
        found.append(GroupReset(state, state.position, target, again, skipped))
    return found


def reset(resets: Sequence[GroupReset]) -> Steps[None]:
    """Move groups to their new positions. Pending entries are not affected."""
    checked((yield [calls.tgroup_setid(each.state.stream, each.state.group, each.after) for each in resets]))
