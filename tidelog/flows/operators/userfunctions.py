"""Python functions as operators: lookup, inspection, calls.

    def f(value) -> new value           None discards the event
    def f(event: Event) -> new value    can also return the event itself, changed
    def f(value): yield ...             each value becomes an event; without values, the event is discarded
    async def f(value) ...              the same, asynchronously
    class F: def __call__(self, value)  an object per position in a pipeline of each instance; it can have state

A result ``To(port, value)`` is sent to a port that is declared by ``@operator(ports=[...])``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, TypeVar, final, overload

from tidelog.flows.api.cancellation import from_outside
from tidelog.flows.api.errors import RetryError
from tidelog.flows.api.event import Event

Outcome: TypeAlias = "Sequence[Any] | Exception"  # the values that an event becomes, or an exception
ExecutionMode: TypeAlias = Literal["loop", "thread", "process"]
F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__tidelog_operator__"


@overload
def operator(call: F, /) -> F: ...
@overload
def operator(
    *, concurrency: int = 1, in_: ExecutionMode = "loop", ports: Sequence[str] = ()
) -> Callable[[F], F]: ...
def operator(
    call: Any = None, /, *, concurrency: int = 1, in_: ExecutionMode = "loop", ports: Sequence[str] = ()
) -> Any:
    """Set how a function is called by the operator ``python``. The function itself is returned unchanged.

        >>> @operator(concurrency=8)
        ... async def add_customer(order): ...

    ports: the names that the function uses in ``To``. They must be connected.
    """
    names = (ports,) if isinstance(ports, str) else tuple(dict.fromkeys(ports))

    def mark(function: Any) -> Any:
        setattr(function, _MARK, (concurrency, in_, names))
        return function

    return mark if call is None else mark(call)


@final
@dataclass(frozen=True, slots=True)
class To:
    """A result of a function: a value, or an event, and the port to which it is sent. A value None is sent as well."""

    port: str
    value: Any


@dataclass(frozen=True)
class DeclaredOperator:
    """A function with the settings of ``@operator``."""

    call: Any
    concurrency: int
    where: ExecutionMode
    ports: tuple[str, ...]

    @classmethod
    def of(cls, given: Any) -> DeclaredOperator:
        """Look up a function, or use the given one. Raises ValueError if there is no such function."""
        call = _imported(given) if isinstance(given, str) else given
        if not callable(call):
            raise ValueError(f"{given!r} is not a function, or its name as module:function")
        marked: tuple[int, ExecutionMode, tuple[str, ...]] = getattr(call, _MARK, (1, "loop", ()))
        return cls(call, *marked)


def _imported(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{name!r} is not the name of a function, such as module:function")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"the module of {name!r} can't be imported: {type(error).__name__}: {error}") from error
    try:
        return attrgetter(attribute)(found)
    except AttributeError:
        raise ValueError(f"the module {module!r} has no {attribute!r}") from None


class UserFunction:
    """A function and its properties."""

    def __init__(self, call: Any) -> None:
        self.name: str = getattr(call, "__qualname__", None) or type(call).__qualname__
        self.made_from: Any = call  # can be pickled
        self._is_class = isinstance(call, type) and any("__call__" in vars(each) for each in call.__mro__)
        looked_at = call
        if self._is_class:
            looked_at = call.__call__
        elif not inspect.isroutine(call) and not isinstance(call, type) and hasattr(call, "__call__"):  # noqa: B004
            looked_at = call if _is_partial(call) else call.__call__
        self.takes_event = _takes_event(looked_at, self.name, skip=1 if self._is_class else 0)
        is_async = inspect.iscoroutinefunction(looked_at)
        self._many_async = inspect.isasyncgenfunction(looked_at)
        self._many = inspect.isgeneratorfunction(looked_at)
        self.waits = is_async or self._many_async
        self.plain = not (self.waits or self._many or self.takes_event)  # takes a value and returns a value
        self.call: Callable[[Any], Any] = call

    def begin(self) -> None:
        """Create the object of a class at the start of the flow."""
        if self._is_class:
            self.call = self.made_from()

    def outcome(self, event: Event) -> Outcome:
        """Call the function, and collect the values that it yields."""
        try:
            result = self.call(event if self.takes_event else event.value)
            if self._many:
                return list(result)
        except Exception as error:  # noqa: BLE001 - user functions can raise any exception
            return error
        return () if result is None else (result,)

    async def awaited(self, event: Event) -> Outcome:
        """Call an async function, and collect the values that it yields."""
        try:
            result = self.call(event if self.takes_event else event.value)
            if self._many_async:
                return [each async for each in result]
            result = await result
        except asyncio.CancelledError:
            if from_outside():
                raise
            return RetryError(f"{self.name} was cancelled from inside")
        except Exception as error:  # noqa: BLE001 - user functions can raise any exception
            return error
        return () if result is None else (result,)


def function(call: Any, where: ExecutionMode) -> UserFunction:
    """Inspect a function. Raises ValueError if it can't be called in this mode."""
    made = UserFunction(call)
    if where != "loop" and made.waits:
        raise ValueError(f"{made.name} is an async function and runs in the event loop: omit in: {where}")
    if where == "process":
        if made.takes_event:
            raise ValueError(f"{made.name} takes an event: with in: process, a function only gets the value")
        try:
            pickle.dumps(call)
        except Exception as error:
            raise ValueError(
                f"{made.name} can't be passed to a process ({error}): it must be importable by name"
            ) from error
    return made


def _is_partial(call: Any) -> bool:
    return hasattr(call, "func") and hasattr(call, "keywords")


def _takes_event(call: Any, name: str, skip: int) -> bool:
    try:
        parameters = list(inspect.signature(call).parameters.values())[skip:]
    except (ValueError, TypeError):  # functions in C without a signature
        return False
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
    if not positional or len(needed) > 1 or any(each.kind is each.KEYWORD_ONLY for each in needed):
        raise ValueError(f"{name} must take one argument: a value, or an event")
    first = positional[0]
    return first.annotation is Event or first.annotation in ("Event", "flows.Event") or first.name == "event"


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
