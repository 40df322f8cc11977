"""``python``: calls a Python function, which returns the new value.

Rule 1: The order of events is preserved, whatever the concurrency: a result waits for those of earlier events.
Rule 2: The number of events that were taken and not emitted is limited. At the limit, no batch is taken.
Rule 3: An exception of the function only affects its own event. If a process dies, its events are retried.
Rule 4: A result ``To(port, value)`` for a port that is not declared fails its event as a whole, because nothing can be
        connected to the port.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from tidelog.flows.api.errors import RetryError
from tidelog.flows.api.event import BATCH, Event, copied
from tidelog.flows.api.operator import Operator
from tidelog.flows.edges import check_port
from tidelog.flows.operators.executors import Pool
from tidelog.flows.operators.userfunctions import DeclaredOperator, Outcome, To, UserFunction, function
from tidelog.options.structs import Struct

CONCURRENCY: Final = 10_000  # maximum
_PREPARED: Final = (Event, To)  # results that are more than a value


class PythonOperatorOptions(Struct):
    """The options of ``python``."""

    call: Any
    # A function or class, or its name as `module:function`. The short form: `python: "shop.flows:f"`; in Python the
    # function itself.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=CONCURRENCY)] = 1
    # Number of concurrent calls, from 1 to 10,000. More than one requires an async function, threads or processes. The
    # order of events is preserved.
    in_: Literal["loop", "thread", "process"] = msgspec.field(default="loop", name="in")
    # Where the function runs: in the event loop, in threads, or in processes.


@dataclass(slots=True, eq=False)
class _Pending:
    """An event whose call is not complete."""

    event: Event
    outcome: Outcome | None = None


class PythonOperator(Operator):
    """Implements ``python``."""

    type = "python"
    short = "call"
    Options = PythonOperatorOptions

    def __init__(self, options: PythonOperatorOptions) -> None:
        declared = DeclaredOperator.of(options.call)
        self._concurrency = options.concurrency if options.concurrency > 1 else declared.concurrency
        self._where = options.in_ if options.in_ != "loop" else declared.where
        if not 1 <= self._concurrency <= CONCURRENCY:
            raise ValueError(f"concurrency is {self._concurrency}: it must be from 1 to {CONCURRENCY}")
        self._function: UserFunction = function(declared.call, self._where)
        if self._concurrency > 1 and self._where == "loop" and not self._function.waits:
            raise ValueError(
                f"{self._function.name} is not an async function, so only one call runs at a time:"
                " omit concurrency, or use in: thread, or in: process"
            )
        self._ports = declared.ports
        for each in declared.ports:
            check_port(each, "ports", "out")
        self._elsewhere: dict[str, list[Event]] = {}  # by port other than out; empty between two batches
        self._order: deque[_Pending] = deque()  # taken and not emitted
        self._todo: deque[_Pending] = deque()  # those of them whose call has not begun
        self._workers = 0
        self._deliver_soon = False
        self._pool: Pool | None = None

    def ports(self) -> tuple[str, ...]:
        return self._ports

    def required(self) -> tuple[str, ...]:
        return self._ports

    def start(self) -> None:
        self._function.begin()
        if self._where != "loop":
            self._pool = Pool(self._where, self._function, self._concurrency)

    def process(self, events: list[Event]) -> None:
        if self._where == "loop" and not self._function.waits:
            self._at_once(events)
            return
        pending = [_Pending(each) for each in events]
        self._order.extend(pending)
        self._todo.extend(pending)
        for _ in range(min(self._concurrency - self._workers, len(self._todo))):
            self._workers += 1
            self.spawn(self._pooled(self._pool) if self._pool is not None else self._awaited())

    def _at_once(self, events: list[Event]) -> None:
        call = self._function.call
        if not self._function.plain:
            out: list[Event] = []
            for event in events:
                self._take(event, self._function.outcome(event), out)
            self._emit_all(out)
            return
        good: list[Event] = []
        none: list[Event] = []
        for event in events:
            try:
                value = call(event.value)
            except Exception as error:  # noqa: BLE001 - user functions can raise any exception
                self.fail(event, error)
                continue
            if value is None:
                none.append(event)
            elif type(value) is not dict and isinstance(value, _PREPARED):  # the first check is faster
                self._take(event, [value], good)
            else:
                event.value = value
                good.append(event)
        self.drop(none, "python: None")
        self._emit_all(good)

    # -- async functions, and functions that run elsewhere ---------------------------------------------------
    async def _awaited(self) -> None:
        try:
            while self._todo:
                pending = self._todo.popleft()
                if not self._todo:
                    self.node.wake()
                pending.outcome = await self._function.awaited(pending.event)
                self._done()
        finally:
            self._workers -= 1

    async def _pooled(self, pool: Pool) -> None:
        """Process a share of the waiting events per call, which reduces the overhead per event."""
        try:
            while self._todo:
                share = -(-len(self._todo) // max(1, self._workers))
                chunk = [self._todo.popleft() for _ in range(share)]
                if not self._todo:
                    self.node.wake()
                try:
                    outcomes: Sequence[Outcome] = await pool.run([each.event for each in chunk])
                except BrokenExecutor as error:
                    outcomes = [RetryError(f"a process of {self._function.name} died: {error}")] * len(chunk)
                except Exception as error:  # noqa: BLE001 - a value that can't be pickled
                    outcomes = [error] * len(chunk)
                for each, outcome in zip(chunk, outcomes, strict=True):
                    each.outcome = outcome
                self._done()
        finally:
            self._workers -= 1

    def _done(self) -> None:
        if not self._deliver_soon and self._order and self._order[0].outcome is not None:
            self._deliver_soon = True
            self.node.later(self._deliver)

    def _deliver(self) -> None:
        self._deliver_soon = False
        out: list[Event] = []
        order = self._order
        while order and (outcome := order[0].outcome) is not None:
            self._take(order.popleft().event, outcome, out)
        self._emit_all(out)

    # -- the outcome of an event -----------------------------------------------------------------------------
    def _take(self, event: Event, outcome: Outcome, out: list[Event]) -> None:
        """Collect what is to be emitted for an event: the values that it becomes. Or fail it with an exception."""
        if isinstance(outcome, Exception):
            self.fail(event, outcome)
            return
        if not outcome:
            self.drop([event], "python: None")
            return
        ports: list[str] = []
        if To in map(type, outcome):
            ports = [each.port if type(each) is To else "out" for each in outcome]
            unknown = [each for each in ports if each != "out" and each not in self._ports]
            if unknown:
                self.fail(event, ValueError(f"To({unknown[0]!r}, ...) of {self._function.name}: {self._declared}"))
                return
            outcome = [each.value if type(each) is To else each for each in outcome]
        if len(outcome) > 1 and event.token is not None:
            event.token.split(len(outcome) - 1)
        made = [event, *(event.derive(None) for _ in outcome[1:])]
        new = [(each.value, each.meta, each.id) if isinstance(each, Event) else (each, None, None) for each in outcome]
        for one, (value, meta, id_) in zip(made, new, strict=True):
            one.value = value if one is event else copied(value)  # the values can share containers
            if meta is not None and meta is not one.meta:
                one.meta = dict(meta)
                one.id = one.id if id_ is None else id_
        if not ports:
            out += made
            return
        for one, port in zip(made, ports, strict=True):
            (out if port == "out" else self._elsewhere.setdefault(port, [])).append(one)

    def _emit_all(self, out: list[Event]) -> None:
        self.emit(out)
        if self._elsewhere:
            elsewhere, self._elsewhere = self._elsewhere, {}
            for port, events in elsewhere.items():
                self.emit(events, port)

    @property
    def _declared(self) -> str:
        """Return what is declared, and the remedy, for an error text."""
        known = f"it has the ports {', '.join(self._ports)}" if self._ports else "it has no ports"
        return f"{known}: declare this one with @operator(ports=[...])"

    def busy(self) -> bool:
        return bool(self._todo) or len(self._order) >= max(BATCH, 2 * self._concurrency)

    def kept(self) -> int:
        return len(self._order)

    def forget(self) -> None:
        self._order.clear()
        self._todo.clear()

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.close()
