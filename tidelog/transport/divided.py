"""Calls that are divided among the members of a cluster: the call for a part of the keys, and the reply of all parts.

The tips of the command (``request_policy`` and ``response_policy`` of COMMAND) say how replies are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.transport.call import Call
from tidelog.transport.keyspecs import CommandKeys, FoundKeys


def part_of(call: Call[Any], found: FoundKeys, positions: Sequence[int]) -> Call[Any]:
    """Return the call with some of its keys only."""
    args = call.args
    own = sorted(word for position in positions for word in found.words(position))
    every = {word for position in found.at for word in found.words(position)}
    first, last = min(every), max(every)
    kept = (*args[:first], *(args[word] for word in own), *args[last + 1 :])
    return Call(kept, call.read, call.block)


def merged(command: CommandKeys | None, parts: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """Return the reply of a call from its parts: the positions of the keys of each part, and its reply."""
    replies = [reply for _, reply in parts]
    failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failed is not None or command is None:
        return failed
    merge = _MERGES.get(command.response)
    if merge is not None:
        return merge(replies)
    if command.request == "multi_shard":  # MGET: one value for each key
        values = {at: value for keys, reply in parts for at, value in zip(keys, reply, strict=True)}
        return [values[at] for at in sorted(values)]
    return _joined(replies)


def _joined(replies: Sequence[Any]) -> Any:
    """Return one list or map of those in the replies; None if all are null."""
    there = [reply for reply in replies if reply is not None]
    if there and isinstance(there[0], dict):
        return {name: value for reply in there for name, value in reply.items()}
    return [item for reply in there for item in reply] if there else None


def _each(choose: Callable[..., Any], replies: Sequence[Any]) -> Any:
    """Apply a function to numbers, or to each position of lists of numbers."""
    if isinstance(replies[0], list):
        return [choose(numbers) for numbers in zip(*replies, strict=True)]
    return choose(replies)


_MERGES: Final[dict[str, Callable[[Sequence[Any]], Any]]] = {
    "agg_sum": lambda replies: _each(sum, replies),
    "agg_min": lambda replies: _each(min, replies),
    "agg_max": lambda replies: _each(max, replies),
    "agg_logical_and": lambda replies: _each(min, replies),
    "agg_logical_or": lambda replies: _each(max, replies),
    "all_succeeded": lambda replies: replies[0],
    "one_succeeded": lambda replies: replies[0],
}
