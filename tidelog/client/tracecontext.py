"""The W3C trace context of an entry: ``traceparent`` and, if the span has one, ``tracestate``, as its last fields.

Rule 1: opentelemetry is not imported here. A span can be current only if the program has imported it, so a program
        without it pays for one lookup in ``sys.modules`` per call (0.1 us).
Rule 2: the fields are the last ones, after at least one other field. Elsewhere they belong to a record.
Rule 3: an entry with a field of either name gets no trace context. If such a field could be the last one, the record's
        fields are reordered (``first_those``), so that a reader does not mistake it for a trace context.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidelog.transport.call import Call, Value

T = TypeVar("T")
PARENT: Final = "traceparent"
STATE: Final = "tracestate"
NAMES: Final = (PARENT, STATE)
_RAW: Final = (PARENT.encode(), STATE.encode())
_EITHER: Final = frozenset((*NAMES, *_RAW))

TraceContext = tuple[tuple[str, ...], tuple[str, ...]]  # names, values
NONE: Final[TraceContext] = ((), ())


def current() -> TraceContext:
    """Return the fields for the current span; NONE if no span is current."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    get = getattr(trace, "get_current_span", None)  # None also while another thread imports it
    if get is None:
        return NONE
    span = get().get_span_context()
    if not span.is_valid:
        return NONE
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    state: str = span.trace_state.to_header()
    return (NAMES, (parent, state)) if state else (NAMES[:1], (parent,))


def of_mapping(values: Mapping[str, Any]) -> TraceContext:
    """Return the fields for a trace context in a mapping, such as the metadata of an event."""
    parent, state = values.get(PARENT), values.get(STATE)
    if not isinstance(parent, str):
        return NONE
    return (NAMES, (parent, state)) if isinstance(state, str) else (NAMES[:1], (parent,))


def has_either(names: Iterable[object]) -> bool:
    """Return whether a field has the name of one of the two."""
    return not _EITHER.isdisjoint(names)


def count(names: Sequence[str | bytes]) -> int:
    """Return how many of the last fields are the trace context: 0, 1 or 2."""
    length = len(names)
    if length > 1 and names[-1] in _EITHER:
        if names[-1] in (PARENT, _RAW[0]):
            return 1
        if length > 2 and names[-2] in (PARENT, _RAW[0]):
            return 2
    return 0


def first_those(names: Collection[str]) -> list[int]:
    """Return the order of a record's fields in which ``count`` is 0: fields of these names come first."""
    last = len(NAMES)
    rank = [NAMES.index(name) if name in NAMES else last for name in names]
    return sorted(range(len(rank)), key=rank.__getitem__)


def read(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the trace context of an entry: its last fields, or those that another program wrote anywhere."""
    names = flat[::2]
    found = count(names)
    if found:
        pairs = dict(zip(NAMES, flat[1 - 2 * found :: 2], strict=False))
    else:
        fields = dict(zip(names, flat[1::2], strict=True))
        pairs = {name: fields[raw] for name, raw in zip(NAMES, _RAW, strict=True) if raw in fields}
    if PARENT not in pairs:
        return {}
    return {name: value.decode("ascii", "replace") for name, value in pairs.items()}


def split(flat: Sequence[bytes]) -> tuple[Sequence[bytes], dict[str, str]]:
    """Return the entry's other fields and values, and its trace context if it is in its last fields."""
    found = count(flat[::2])
    return (flat[: -2 * found], read(flat)) if found else (flat, {})


def extended(call: Call[T]) -> Call[T]:
    """Return a TAPPEND, TAPPEV, TDELAY, TMAPPEND or TSTAGE with the context of the current span in each entry."""
    names, values = current()
    if not names:
        return call
    args = call.args
    if args[0] in ("TAPPEND", "TAPPEV", "TDELAY"):
        first = 2 if args[0] == "TAPPEND" else 6 if args[0] == "TDELAY" and args[4] == "ID" else 4
        if has_either(args[first::2]):
            return call
        more = [word for pair in zip(names, values, strict=True) for word in pair]
        return replace(call, args=(*args, *more))
    at = 3 if args[0] == "TMAPPEND" else 5  # after FIELDS
    begin, width = at + 1, int(args[at])
    fields, rest = args[begin : begin + width], args[begin + width + 1 :]
    if has_either(fields):
        return call
    rows: list[Value] = []
    for row in range(0, len(rest), width):
        rows += rest[row : row + width]
        rows += values
    return replace(call, args=(*args[:at], width + len(names), *fields, *names, "VALUES", *rows))
