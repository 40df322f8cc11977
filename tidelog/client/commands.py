"""``Commands``: the commands as methods of both clients, each declared once.

A method of ``Client`` or ``AsyncClient`` sends the call that the function of the same name in ``calls`` returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from tidelog.client import calls, tracecontext
from tidelog.transport.call import Call

P = ParamSpec("P")
T = TypeVar("T")
_APPENDING: Final = (calls.tappend, calls.tappev, calls.tdelay, calls.tmappend, calls.tstage)


class _Blocking(Protocol):
    def run(self, call: Call[T]) -> T: ...


class _Asynchronous(Protocol):
    async def run(self, call: Call[T]) -> T: ...


class ClientCommand(Generic[P, T]):
    """A placeholder in ``Commands``, which has a method in its place in each client."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.build = build

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: _Blocking, owner: Any = None) -> Callable[P, T]: ...
        @overload
        def __get__(self, client: _Asynchronous, owner: Any = None) -> Callable[P, Awaitable[T]]: ...
        @overload
        def __get__(self, client: None, owner: Any = None) -> Callable[..., Any]: ...
        def __get__(self, client: Any, owner: Any = None) -> Any: ...


class Commands:
    """The base class of the clients."""

    trace_context = False  # whether the methods that append entries add the context of the current span

    tappend = ClientCommand(calls.tappend)
    tappev = ClientCommand(calls.tappev)
    tdelay = ClientCommand(calls.tdelay)
    tdelay_cancel = ClientCommand(calls.tdelay_cancel)
    tdelay_list = ClientCommand(calls.tdelay_list)
    tdelay_count = ClientCommand(calls.tdelay_count)
    ttrim = ClientCommand(calls.ttrim)
    tmappend = ClientCommand(calls.tmappend)
    tstage = ClientCommand(calls.tstage)
    tpublish = ClientCommand(calls.tpublish)
    tdrop = ClientCommand(calls.tdrop)
    tpersist = ClientCommand(calls.tpersist)
    tfence = ClientCommand(calls.tfence)
    tread = ClientCommand(calls.tread)
    twait = ClientCommand(calls.twait)
    twait_group = ClientCommand(calls.twait_group)
    trange = ClientCommand(calls.trange)
    trevrange = ClientCommand(calls.trevrange)
    tlen = ClientCommand(calls.tlen)
    tcount = ClientCommand(calls.tcount)
    tseek = ClientCommand(calls.tseek)
    tinfo = ClientCommand(calls.tinfo)
    tcfg = ClientCommand(calls.tcfg)
    tcfg_retain = ClientCommand(calls.tcfg_retain)
    tcfg_tier = ClientCommand(calls.tcfg_tier)
    tack = ClientCommand(calls.tack)
    tnack = ClientCommand(calls.tnack)
    ttouch = ClientCommand(calls.ttouch)
    tpending = ClientCommand(calls.tpending)
    tpending_range = ClientCommand(calls.tpending_range)
    tgroup_list = ClientCommand(calls.tgroup_list)
    tgroup_setid = ClientCommand(calls.tgroup_setid)
    tgroup_destroy = ClientCommand(calls.tgroup_destroy)
    wait = ClientCommand(calls.wait)
    waitaof = ClientCommand(calls.waitaof)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Commands in cls.__bases__:  # not in classes that users derive from a client
            for name, command in vars(Commands).items():
                if isinstance(command, ClientCommand):
                    setattr(cls, name, _method(command.build, inspect.iscoroutinefunction(vars(cls)["run"])))


def _method(build: Callable[..., Call[Any]], is_async: bool) -> Callable[..., Any]:
    """Return a method that sends what ``build`` returns, with its signature and docstring for help()."""
    appends = build in _APPENDING

    def built(self: Any, args: Any, kwargs: Any) -> Call[Any]:
        call = build(*args, **kwargs)
        return tracecontext.extended(call) if self.trace_context else call

    if is_async and appends:

        @wraps(build)
        async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return await self.run(built(self, args, kwargs))

    elif is_async:

        @wraps(build)
        async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return await self.run(build(*args, **kwargs))

    elif appends:

        @wraps(build)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.run(built(self, args, kwargs))

    else:

        @wraps(build)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.run(build(*args, **kwargs))

    signature = inspect.signature(build)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *signature.parameters.values()],
        return_annotation=signature.return_annotation.removeprefix("Call[").removesuffix("]"),
    )
    return method
