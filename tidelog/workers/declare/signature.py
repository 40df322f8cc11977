"""The arguments of a user's function, determined from its signature when it is declared.

Rule 1: a function that can't be called is rejected at its declaration, not at the first event.
Rule 2: the annotation only selects between records and events, and is compared with the topic's type. Without an
        annotation, the function takes records.
"""

from __future__ import annotations

import inspect
import types
from collections import abc
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event, Events

Kind = Literal["each", "batch", "events"]
Wants = Literal["record", "event"]
_LISTS: Final = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_EXAMPLES: Final = {
    "each": "async def {name}(record: {type}) -> None, or (event: Event[{type}])",
    "batch": "async def {name}(batch: list[{type}]) -> None, or (batch: list[Event[{type}]])",
    "events": "async def {name}(events: Events[{type}]) -> None",
}


def name_of(function: Any) -> str:
    """Return the name of a function, the default name of its processor; empty if it has none."""
    name = getattr(function, "__name__", "")
    return "" if name == "<lambda>" else str(name)


def wants(title: str, kind: Kind, function: Any, record_type: Any) -> Wants:
    """Return whether a processor's function takes records or events. Raises AppError if it takes anything else."""
    example = _EXAMPLES[kind].format(name=name_of(function) or "handle", type=_shown(record_type))
    check_async(title, function, example)
    (only,) = _parameters(title, function, 1, 1, example)
    hint = _hint(function, only)
    if hint is None:
        return "event" if kind == "events" else "record"
    if kind == "events":
        if _base(hint) is not Events:
            raise AppError(f"{title} takes {_shown(hint)}, but app.processor passes Events: {example}")
        _compare(title, hint, record_type, example)
        return "event"
    if kind == "batch":
        if hint is Any:
            return "record"
        if _base(hint) not in _LISTS:
            raise AppError(f"{title} takes {_shown(hint)}, but app.batch passes a list: {example}")
        hint = (get_args(hint) or (Any,))[0]
    if _base(hint) in (Events, *_LISTS) and hint is not record_type:
        raise AppError(f"{title} takes {_shown(hint)}, but app.{kind} passes another type: {example}")
    if _base(hint) is Event:
        _compare(title, hint, record_type, example)
        return "event"
    _compare_types(title, hint, record_type, example)
    return "record"


def wants_time(title: str, function: Any) -> bool:
    """Return whether a timer's function takes the scheduled time. Raises AppError if it takes anything else."""
    example = f"async def {name_of(function) or 'tick'}() -> None, or (due: datetime)"
    check_async(title, function, example)
    taken = _parameters(title, function, 0, 1, example)
    if taken and _hint(function, taken[0]) not in (None, Any, datetime):
        raise AppError(f"{title} takes {_shown(_hint(function, taken[0]))}: {example}")
    return bool(taken)


def check_async(title: str, function: Any, example: str) -> None:
    """Raise AppError unless a call of the function returns an awaitable."""
    if not callable(function):
        raise AppError(f"{title} is not a function, but {function!r}: {example}")
    called = type(function).__call__  # for an object with a ``__call__`` method
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(called):
        raise AppError(f"{title} contains a yield, so it is a generator: {example}")
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)):
        raise AppError(f"{title} is not async: {example}. Run blocking code in a thread: await asyncio.to_thread(...)")


def check_takes(title: str, function: Callable[..., Any], example: str) -> None:
    """Raise AppError unless the function accepts one argument. Builtins without a known signature are accepted."""
    if not callable(function):
        raise AppError(f"{title} is not a function, but {function!r}: {example}")
    try:
        inspect.signature(function).bind(object())
    except ValueError:  # a builtin without a signature
        pass
    except TypeError:
        raise AppError(f"{title} does not accept one argument: {example}") from None


def _parameters(title: str, function: Any, least: int, most: int, example: str) -> list[inspect.Parameter]:
    """Return the parameters that receive an argument, at most ``most``. Raises AppError if a call is impossible."""
    taken = list(inspect.signature(function).parameters.values())
    positional = [one for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = [one for one in taken if one.kind is one.VAR_POSITIONAL]
    needed = [one for one in taken if one.default is one.empty and one not in rest and one.kind is not one.VAR_KEYWORD]
    used = (positional or rest)[:most] if least else [one for one in needed if one in positional][:most]
    if len(used) < least or any(one not in used for one in needed):
        names = ", ".join(one.name for one in needed) or "nothing"
        called = "one argument" if least else "the scheduled time at most"
        raise AppError(f"{title} needs {names}, but is called with {called}: {example}")
    return used


def _hint(function: Any, parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation; None if it has none, or one that can't be resolved here."""
    target = inspect.unwrap(getattr(function, "func", function))  # func: the function of a partial
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target).get(parameter.name)
    except Exception:  # noqa: BLE001 - evaluates the user's annotations: names that only a type checker imports
        text = str(parameter.annotation)
    for kind in (Events, Event):
        if text.split("[")[0].split(".")[-1] == kind.__name__:
            return kind
    if text.split("[")[0].split(".")[-1] in ("list", "List", "Sequence") and "[" in text:
        return list[Event[Any]] if text.split("[")[1].split(".")[-1] == "Event" else list[Any]
    return None


def _base(hint: Any) -> Any:
    return get_origin(hint) or hint


def _compare(title: str, hint: Any, record_type: Any, example: str) -> None:
    """Compare the type argument of ``Event[...]`` or ``Events[...]``."""
    for argument in get_args(hint):
        _compare_types(title, argument, record_type, example)


def _compare_types(title: str, hint: Any, record_type: Any, example: str) -> None:
    """Raise AppError if a record can't have the annotated type. Annotations that are not classes are not checked."""
    wanted, actual = _base(hint), _base(record_type)
    if wanted is Any or wanted is types.UnionType or not isinstance(wanted, type) or not isinstance(actual, type):
        return
    if issubclass(actual, dict) and dict in wanted.__mro__:  # dicts and TypedDicts are dicts at run time
        return
    try:
        if issubclass(actual, wanted):
            return
    except TypeError:  # a TypedDict, which does not support issubclass()
        pass
    raise AppError(f"{title} takes {_shown(hint)}, but the topic has {_shown(record_type)}: {example}")


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__name__
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(_shown, get_args(hint)))
    return str(hint).replace("typing.", "")
