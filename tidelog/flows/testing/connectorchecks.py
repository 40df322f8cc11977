"""``check_source`` and ``check_sink``: check that a connector fulfills its contract.

    def test_my_source() -> None:
        check_source(lambda: MySource(MyOptions(port=0)), produce=fill)

    def test_my_sink() -> None:
        check_sink(lambda: MySink(MyOptions(path=path)), [{"n": 1}, {"n": 2}], invalid=[object()])

Both run the connector without a flow, in their own event loop, and raise ConformanceError if the contract is violated.
docs/flows-extending.md explains each rule. ``peer`` is an asynchronous context manager that runs a peer in the same
event loop; the connector is created inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias

from tidelog.flows.api.connector import Connector, Deferred, Outcome, Sink, Source
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, REJECT, RETRY, STATUSES, Token

PATIENCE: Final = 10.0  # s that a connector may take for one step
LIMIT: Final = 3  # of a pull, so that several pulls are necessary

Peer: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class ConformanceError(AssertionError):
    """A contract is violated. The text names the rule."""


def require(condition: object, text: str) -> None:
    if not condition:
        raise ConformanceError(text)


class _Entity:
    """A source or a sink that is tested. It implements ``SourceEntity`` and ``SinkEntity``."""

    def __init__(self, context: FlowContext) -> None:
        self.name = "tested"
        self.context = context
        self.accepting = True
        self.ended = False
        self.settles = True
        self.connected_ports: tuple[str, ...] = ("err",)
        self.answers: list[tuple[Event, int]] = []
        self.changed = asyncio.Event()
        self.done: list[Token] = []  # with the next three: the owner of tokens
        self.debug = False

    def answer(self, event: Event, status: int, reason: str = "") -> bool:  # noqa: ARG002 - the interface's form
        first = all(each is not event for each, _ in self.answers)
        self.answers.append((event, status))
        self.changed.set()
        return first

    def answer_items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None:
        self.answer(event, max(outcomes)[0])

    def wake(self) -> None:
        self.changed.set()

    def settled_twice(self, token: Any) -> None: ...
    def lost_unsettled(self, text: str) -> None: ...
    def lost(self, error: BaseException) -> None: ...
    def count(self, name: str, more: int = 1) -> None: ...
    def room_changed(self) -> None: ...
    def escalate(self, action: str, reason: str) -> None: ...
    def respond(self, events: list[Event], port: str) -> None: ...
    def trigger(self, kind: str, detail: str = "") -> None: ...
    def restore(self, kind: str, *, probe: bool = False) -> None: ...


class _Tested:
    """A connector in its context. Each step must end within ``patience`` seconds."""

    def __init__(self, make: Callable[[], Any], server: str | None, patience: float, *, source: bool) -> None:
        self.again = partial(_Tested, make, server, patience, source=source)  # creates another one
        self.patience = patience
        self.connector = make()
        context = FlowContext("conformance", server)
        self.entity = _Entity(context)
        self.context = ConnectorContext("tested", context)
        if source:
            self.context.source = self.entity
        else:
            self.context.sink = self.entity
        self.connector.context = self.context

    async def step(self, name: str, work: Awaitable[Any], hint: str = "", *permitted: type[Exception]) -> Any:
        """Await ``work``. Raises ConformanceError if it takes too long, or for an exception that is not permitted."""
        raised: tuple[type[Exception], ...] = (ConformanceError, *permitted)
        try:
            async with asyncio.timeout(self.patience):
                return await work
        except TimeoutError:
            raise ConformanceError(f"{name} did not return within {self.patience:g} s") from None
        except raised:
            raise
        except Exception as error:
            raise ConformanceError(f"{name} raised {error!r}{hint}") from error

    async def connect(self) -> None:
        await self.step("connect", self.connector.connect(), ": is the peer running?")

    async def close(self, times: int = 2) -> None:
        for name in ("close", "a second call of close")[:times]:
            await self.step(name, self.connector.close(), ": it must work at any time")


def check_source(
    make: Callable[[], Source],
    *,
    produce: Callable[[Any, int], Awaitable[None]] | None = None,
    count: int = 7,
    redelivers: bool | None = None,
    ends: bool = False,
    peer: Peer = contextlib.nullcontext,
    server: str | None = None,
    patience: float = PATIENCE,
) -> None:
    """Check a source. Raises ConformanceError if it violates the contract.

    make: creates a source with the options to test. produce: makes this many events available, and gets the connected
    source; None: the source creates events itself. redelivers: events that were pulled and not settled are delivered
    again, by the next source that ``make`` creates; None: not checked. ends: ``pull`` returns None after ``count``
    events. server: the URL of a tidelog server.
    """

    async def whole() -> None:
        async with peer():
            await _check_source(_Tested(make, server, patience, source=True), produce, count, redelivers, ends)

    asyncio.run(whole())


async def _check_source(tested: _Tested, produce: Any, count: int, redelivers: bool | None, ends: bool) -> None:
    _check_kind(tested.connector, Source)
    await tested.close(1)  # the runtime may close a source that never connected
    await tested.connect()
    try:
        if produce is not None:
            await _check_interrupt(tested)
            await tested.step("produce", produce(tested.connector, count))
        events = await _pulled(tested, count)
        ids = [each.id for each in events]
        anonymous = not (tested.connector.remembers or tested.connector.owns_policy)
        require(anonymous or None not in ids, "an event has no id: settled can't identify it")
        # events of one message may share an ID, if the source counts their settlements
        require(all(_hashable(each) for each in ids), f"an id is not hashable: {ids[0]!r}")
        require(all(each.token is None for each in events), "a source must not set token: the runtime does")
        room = tested.connector.room
        require(room is None or isinstance(room, int), f"room is {room!r}: it must be None or a number")
        require(tested.connector.backlog >= 0, "backlog is negative")
        keep = events[len(events) // 2 :] if redelivers else []
        done = [each for each in events if each not in keep]
        await _settle(tested, done)
        if ends:
            last = await tested.step("pull", tested.connector.pull(LIMIT))
            while last == []:
                last = await tested.step("pull", tested.connector.pull(LIMIT))
            require(last is None, f"pull returned {last!r} after the last event: it must return None")
    except BaseException:
        with contextlib.suppress(ConformanceError):
            await tested.close(1)
        raise
    await tested.close()
    if redelivers is not None:
        await _check_redelivery(tested.again(), produce, [each.value for each in keep], wanted=redelivers)


def _check_kind(connector: Any, kind: type[Connector]) -> None:
    require(isinstance(connector, kind), f"{type(connector).__name__} does not derive from {kind.__name__}")
    if kind is Source:
        text = "__init__ does not call super().__init__(), which wait and interrupt need"
        require(hasattr(connector, "_interrupted"), text)
    elif not isinstance(connector, Source):
        require(isinstance(connector.concurrency, int), f"concurrency is {connector.concurrency!r}, not a number")


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


async def _check_interrupt(tested: _Tested) -> None:
    """Check that a waiting pull returns an empty list soon after ``interrupt``, without being cancelled."""
    pull = asyncio.ensure_future(tested.connector.pull(LIMIT))
    await asyncio.sleep(0.05)
    if pull.done():
        require(pull.result() is not None, "pull returned None before there were events: the source would have ended")
        require(pull.result() == [], f"pull returned {pull.result()!r} before there were events")
        return
    tested.connector.interrupt()
    done, _ = await asyncio.wait((pull,), timeout=tested.patience)
    if not done:
        pull.cancel()
        await asyncio.gather(pull, return_exceptions=True)
        raise ConformanceError(f"pull did not return within {tested.patience:g} s after interrupt: no flow can drain")
    require(pull.result() == [], f"an interrupted pull returned {pull.result()!r}: it must return an empty list")


async def _pulled(tested: _Tested, count: int) -> list[Event]:
    events: list[Event] = []
    try:
        async with asyncio.timeout(tested.patience):
            while len(events) < count:
                limit = min(LIMIT, count - len(events))
                found = await tested.connector.pull(limit)
                require(found is not None, f"pull returned None after {len(events)} of {count} events")
                require(isinstance(found, list), f"pull returned {type(found).__name__}, not a list or None")
                require(all(isinstance(each, Event) for each in found), f"pull returned {found!r}, not Events")
                require(len(found) <= limit, f"pull({limit}) returned {len(found)} events: the limit is a maximum")
                events += found
    except TimeoutError:
        text = f"pull returned {len(events)} of {count} events within {tested.patience:g} s"
        raise ConformanceError(text) from None
    return events


async def _settle(tested: _Tested, events: list[Event]) -> None:
    tokens = [Token(tested.entity, each.id) for each in events]
    await tested.step("settled", tested.connector.settled(tokens), " for tokens of events that were pulled")


async def _check_redelivery(tested: _Tested, produce: Any, values: list[Any], *, wanted: bool) -> None:
    """Check that unsettled events reach the next source, if ``wanted``, and that settled events never do."""
    await tested.connect()
    try:
        found = await _pulled(tested, len(values)) if wanted and values else []
        got, expected = sorted(map(repr, (each.value for each in found))), sorted(map(repr, values))
        text = f"after a restart the source delivered {got}: it must redeliver the unsettled events {expected}"
        require(got == expected, text)
        if produce is not None:
            await _check_nothing_more(tested)
        await _settle(tested, found)
    finally:
        await tested.close()


async def _check_nothing_more(tested: _Tested) -> None:
    pull = asyncio.ensure_future(tested.connector.pull(LIMIT))
    await asyncio.wait((pull,), timeout=0.2)
    if not pull.done():
        tested.connector.interrupt()
    more = await tested.step("pull after interrupt", pull)
    require(not more, f"after a restart the source delivered settled events again: {more!r}")


def check_sink(
    make: Callable[[], Sink],
    values: Sequence[Any],
    *,
    invalid: Sequence[Any] = (),
    connected: Callable[[Any], Awaitable[None]] | None = None,
    written: Callable[[Any], Awaitable[Sequence[Any]]] | None = None,
    meta: dict[str, Any] | None = None,
    peer: Peer = contextlib.nullcontext,
    server: str | None = None,
    patience: float = PATIENCE,
) -> None:
    """Check a sink. Raises ConformanceError if it violates the contract.

    values: can be written. invalid: can't be written, and must be rejected without affecting the others. connected: is
    called with the sink after each connect, for example to connect a client to it. written: gets the sink, and returns
    the values that have arrived at the peer. meta: of each event.
    """

    async def whole() -> None:
        async with peer():
            tested = _Tested(make, server, patience, source=False)
            await _check_sink(tested, list(values), list(invalid), connected, written, meta or {})

    asyncio.run(whole())


async def _check_sink(
    tested: _Tested, values: list[Any], invalid: list[Any], connected: Any, written: Any, meta: dict[str, Any]
) -> None:
    _check_kind(tested.connector, Sink)
    await tested.close(1)
    await tested.connect()
    try:
        if connected is not None:
            await tested.step("connected", connected(tested.connector))
        await _write_all(tested, values, meta)
        for each in invalid:
            mixed = [values[0], each, values[-1]]
            statuses = await _written(tested, mixed, meta)
            require(
                statuses[1] in (REJECT, RETRY),
                f"the invalid value {each!r} was settled {STATUSES[statuses[1]]}: it must be rejected",
            )
            require(
                len(set(statuses)) == 1 or statuses[0] == statuses[2] == OK,
                f"the invalid value {each!r} changed the outcomes of others: {[STATUSES[one] for one in statuses]}",
            )
        withdrawn = tested.connector.withdraw(lambda _: True)
        require(not list(withdrawn), f"withdraw returned {withdrawn!r} although no write is in progress")
        await tested.step("flush", tested.connector.flush())
        await tested.close()
        await tested.connect()  # the runtime reconnects after an error
        if connected is not None:
            await tested.step("connected", connected(tested.connector))
        await _write_all(tested, values, meta)
        if written is not None:
            found = await tested.step("written", written(tested.connector))
            missing = [each for each in values if each not in found]
            require(not missing, f"events that were settled ok did not arrive: {missing!r}")
    finally:
        await tested.close()


async def _write_all(tested: _Tested, values: list[Any], meta: dict[str, Any]) -> None:
    for one, status in zip(values, await _written(tested, values, meta), strict=True):
        require(status == OK, f"the valid value {one!r} was settled {STATUSES[status]}")


async def _written(tested: _Tested, values: list[Any], meta: dict[str, Any]) -> list[int]:
    """Write a batch and return the status of each event."""
    owner: Any = tested.entity
    events = [Event(value, dict(meta), number) for number, value in enumerate(values)]
    for event in events:
        event.token = Token(owner, event.id)
    tested.entity.answers.clear()
    hint = ": return an outcome for each event, or raise RejectError"
    try:
        result = await tested.step("write", tested.connector.write(list(events)), hint, RejectError)
    except RejectError:
        return [REJECT] * len(events)
    if isinstance(result, Deferred):
        return await _deferred(tested, events)
    require(not tested.entity.answers, "write called context.answer and did not return DEFERRED")
    if result is None:
        return [OK] * len(events)
    require(isinstance(result, Sequence), f"write returned {result!r}: it must be None, DEFERRED or a list")
    text = f"write returned {len(result)} outcomes for {len(events)} events: it must return one for each, in order"
    require(len(result) == len(events), text)
    return [_status(each) for each in result]


async def _deferred(tested: _Tested, events: list[Event]) -> list[int]:
    try:
        async with asyncio.timeout(tested.patience):
            while len({id(each) for each, _ in tested.entity.answers}) < len(events):
                tested.entity.changed.clear()
                await tested.entity.changed.wait()
    except TimeoutError:
        found = len({id(each) for each, _ in tested.entity.answers})
        text = f"write returned DEFERRED and answered {found} of {len(events)} events in {tested.patience:g} s"
        raise ConformanceError(text) from None
    require(len(tested.entity.answers) == len(events), "an event was answered twice")
    by_event = {id(each): status for each, status in tested.entity.answers}
    require(by_event.keys() == {id(each) for each in events}, "an event was answered that was not written")
    return [by_event[id(each)] for each in events]


def _status(outcome: Outcome) -> int:
    """Return the status of an outcome, which must be valid."""
    if isinstance(outcome, int):
        status = outcome
    elif isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], str):
        status = outcome[0]
    elif isinstance(outcome, Sequence) and not isinstance(outcome, str) and outcome:
        status = max(_status(each) for each in outcome if not isinstance(each, str))
    else:
        raise ConformanceError(f"{outcome!r} is not an outcome: a status, (status, reason), or a list of these")
    require(isinstance(status, int) and 0 <= status < len(STATUSES), f"{status!r} is not a status of tokens.py")
    return status
