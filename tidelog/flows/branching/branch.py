"""``branch``: sends a part of each event through operators or to an HTTP server, and stores the response in the event.

Rule 1: The event keeps its token. The request is a new event of the inner flow (``innerflow``), whose settlement ends
        the call. A request that was discarded there has no response: its event is passed on unchanged.
Rule 2: The order of events is preserved. If ``max_in_flight`` events wait, no batch is taken.
Rule 3: Events with equal cache keys share a call that is in flight.
Rule 4: The time limit of a call begins when the request is sent. While the peer is unavailable, requests wait without a
        time limit, and the sources above have the reason ``outage``. With ``outage: fail``, they fail after GRACE
        seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from tidelog.flows.api.errors import FlowError, RejectError, RetryError
from tidelog.flows.api.event import Event, copied
from tidelog.flows.api.flowcontext import FlowContext, now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY, STATUSES, Token
from tidelog.flows.branching.branchoptions import BranchOptions
from tidelog.flows.branching.innerflow import RequestSource, ResponseSink, inner_flow
from tidelog.flows.branching.responsecache import MemoryCache, ServerCache
from tidelog.flows.expressions.nodes import Cell
from tidelog.flows.operators.fieldpaths import field_path, with_field
from tidelog.flows.operators.jmescompiler import expression, is_true
from tidelog.flows.operators.keytext import key_text
from tidelog.flows.operators.serverrequests import place
from tidelog.flows.runtime.runningflow import RunningFlow

OUTAGE: Final = "outage"  # the kind of the reason while requests can't be sent
GRACE: Final = 1.0  # s without sending until this is an outage
LOOK: Final = 0.25  # s between checks while requests wait

log = logging.getLogger("tidelog.flows")


class BranchFailedError(Exception):
    """A request that failed, for ``failures: err``."""


@dataclass(slots=True, eq=False)
class _Awaiting:
    """An event that was taken and not emitted."""

    event: Event
    request: Any = None
    key: str | None = None  # of the cache
    done: bool = False
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """A request that was added to the inner flow."""

    key: str | None
    events: list[_Awaiting]
    responses: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)  # values and metadata
    timer: asyncio.TimerHandle | None = None


class BranchOperator(Operator):
    """Implements ``branch``."""

    type = "branch"
    Options = BranchOptions

    def __init__(self, options: BranchOptions) -> None:
        self._options = options
        self._most = options.max_in_flight
        self._spec = inner_flow(options.operators, options.http_client, self._most, "redis://checked.elsewhere")
        self._event: Cell = [None]
        self._meta: Cell = [None]
        scope = {"$event": self._event, "$meta": self._meta}
        request_scope = {"$meta": self._meta}
        self._request = expression(options.request, "request", request_scope)
        self._where = None if options.where is None else expression(options.where, "where", request_scope)
        self._set = [
            (field_path(name, "set"), expression(text, f"set.{name}", scope)) for name, text in options.set.items()
        ]
        self._new_meta = [(name, expression(text, f"meta.{name}", scope)) for name, text in options.meta.items()]
        self._key = None if options.cache is None else expression(options.cache.key, "cache.key")
        self._order: deque[_Awaiting] = deque()
        self._calls: dict[int, _Call] = {}  # by number
        self._by_key: dict[str, _Call] = {}
        self._number = 0
        self._deliver_soon = False
        self._memory: MemoryCache | None = None
        self._server: ServerCache | None = None
        self._lookups: deque[list[_Awaiting]] = deque()  # waiting for the server of the cache
        self._looking = False
        self._stuck_since: float | None = None  # event loop time since which requests wait
        self._last_outage = -math.inf  # event loop time at which requests were last known to wait
        self._outage = ""  # the reason, if requests fail immediately
        self._watching = False
        self._warned = False  # the first error of the cache was logged

    def needs_server(self) -> bool:
        cache = self._options.cache
        on_server = cache is not None and cache.store == "redis" and cache.url is None
        return on_server or any(each.needs_server for line in self._spec.pipelines.values() for each in line.operators)

    def start(self) -> None:
        outer = self.node.context
        name, dot, instance = outer.flow.partition(".")
        # keys on the server contain the part before the dot, so all instances share them
        alias = f"{name}/{self.node.name.replace('.', '_')}{dot}{instance}"
        context = FlowContext(alias, outer.server, queue=outer.queue, now_ns=outer.now_ns, random=outer.random)
        self._running = RunningFlow(self._spec, context)
        requests, responses = (self._running.graph.connectors[each] for each in ("requests", "responses"))
        assert isinstance(requests, RequestSource)  # noqa: S101 - declared so
        assert isinstance(responses, ResponseSink)  # noqa: S101
        self._source = requests
        requests.sent, requests.ended, responses.received = self._sent, self._ended, self._received
        cache = self._options.cache
        if cache is not None and cache.store == "memory":
            self._memory = MemoryCache(cache.entries, cache.size, cache.ttl, now)
        elif cache is not None:
            prefix = place(self, "branch", cache.name)
            self._server = ServerCache(cache.url or str(outer.server), prefix, cache.ttl, self._cache_failed)
        self.spawn(self._run())

    async def _run(self) -> None:
        running = self._running
        await running.start()
        try:
            await running.finished()
            raise FlowError(f"the operators within the branch failed: {running.error}")
        finally:
            if self._server is not None:
                await self._server.close()
            await running.stop()

    def busy(self) -> bool:
        return len(self._order) >= self._most

    def kept(self) -> int:
        return len(self._order)

    def forget(self) -> None:
        self._order.clear()
        self._calls.clear()
        self._by_key.clear()
        self._lookups.clear()

    # -- requests --------------------------------------------------------------------------------------------
    def process(self, events: list[Event]) -> None:
        wanted: list[_Awaiting] = []
        for event in events:
            one = _Awaiting(event)
            try:
                self._meta[0] = event.meta
                if self._where is not None and not is_true(self._where(event.value)):
                    one.done = True
                else:
                    one.request = copied(self._request(event.value))
                    one.key = None if self._key is None else key_text(self._key(one.request))
                    wanted.append(one)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
                continue
            self._order.append(one)
        self._meta[0] = None
        if self._server is not None and wanted:
            self._lookups.append(wanted)
            if not self._looking:
                self._looking = True
                self.spawn(self._look_up(self._server))
        else:
            self._call_all(wanted)
        self._deliver_if_done()

    async def _look_up(self, server: ServerCache) -> None:
        while self._lookups:
            wanted = self._lookups.popleft()
            found = await server.get([each.key or "" for each in wanted])
            self.node.later(partial(self._looked_up, wanted, found))
        self._looking = False

    def _looked_up(self, wanted: list[_Awaiting], found: list[bytes | None]) -> None:
        self._call_all(
            [each for each, raw in zip(wanted, found, strict=True) if raw is None or not self._hit(each, raw)]
        )
        self._deliver_if_done()

    def _hit(self, one: _Awaiting, raw: bytes) -> bool:
        """Use a stored response. Return False if it can't be read."""
        try:
            value, meta = msgspec.msgpack.decode(raw)
        except (ValueError, TypeError):
            return False
        self.node.count("cache_hits")
        self._respond(one, value, {**one.event.meta, **meta})
        return True

    def _call_all(self, wanted: Sequence[_Awaiting]) -> None:
        requests: list[Event] = []
        for one in wanted:
            key = one.key
            if key is not None:
                if self._memory is not None and (raw := self._memory.get(key)) is not None and self._hit(one, raw):
                    continue
                if (call := self._by_key.get(key)) is not None:
                    self.node.count("cache_shared")
                    call.events.append(one)
                    continue
            if self._outage:
                self._failed(one, RETRY, self._outage)
                continue
            self._number += 1
            call = self._calls[self._number] = _Call(key, [one])
            if key is not None:
                self._by_key[key] = call
            event = one.event
            requests.append(Event(one.request, dict(event.meta), self._number, event.ingest_ns, event.attempt))
        if requests:
            self.node.count("requests", len(requests))
            self._source.add(requests)
            self._watch()

    def _sent(self, requests: Sequence[Event]) -> None:
        for each in requests:
            call = self._calls.get(each.id)
            if call is not None:
                call.timer = self.node.after(self._options.timeout, partial(self._expired, each.id))

    def _expired(self, number: int) -> None:
        call, timeout = self._calls.get(number), self._options.timeout
        if call is not None and self._options.outage == "wait":
            if not self._source.context.accepting:
                self._last_outage = now()
            left = self._last_outage + timeout - now()
            if left > 0:
                call.timer = self.node.after(left, partial(self._expired, number))
                return
        self.node.count("timeouts")
        self._end(number, RETRY, f"no response within {timeout:g} s")

    # -- outages ---------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self.node.after(LOOK, self._look)

    def _look(self) -> None:
        """Check whether requests can be sent, as long as any wait, or none could be sent at the last check."""
        self._watching = False
        if self._source.context.accepting:
            self._stuck_since, self._outage = None, ""
            self.node.restore(OUTAGE)
            if self._source.waiting:
                self._watch()
            return
        clock = self._last_outage = now()
        self._stuck_since = self._stuck_since or clock
        if clock - self._stuck_since >= GRACE:
            reasons = [each for found in self._running.reasons().values() for each in found]
            text = ", ".join(f"{each.reason} {each.detail}".strip() for each in reasons)
            if self._options.outage == "wait":
                self.node.trigger(OUTAGE, text)
            else:
                self._outage = f"no request can be sent: {text}"
                waiting = [each.id for each in self._source.waiting]
                self._source.waiting.clear()
                for each in waiting:
                    self._end(each, RETRY, self._outage)
        self._watch()

    # -- responses -------------------------------------------------------------------------------------------
    def _received(self, number: int, event: Event) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.responses.append((event.value, event.meta))

    def _ended(self, tokens: Sequence[Token]) -> None:
        self.node.later(partial(self._end_all, [(each.key, each.status, str(each.reason)) for each in tokens]))

    def _end_all(self, ended: list[tuple[int, int, str]]) -> None:
        stored: list[tuple[str, bytes]] = []
        for number, status, reason in ended:
            self._end(number, status, reason, stored)
        if stored and self._server is not None:
            self.spawn(self._server.put(stored))

    def _end(self, number: int, status: int, reason: str, stored: list[tuple[str, bytes]] | None = None) -> None:
        """End a call, unless it has ended."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        if call.timer is not None:
            call.timer.cancel()
        if call.key is not None and self._by_key.get(call.key) is call:
            del self._by_key[call.key]
        if status == OK and len(call.responses) > 1:
            status, reason = REJECT, f"{len(call.responses)} responses for one request"
        if status > DISCARD:
            self.node.count("failures")
            for one in call.events:
                self._failed(one, status, reason)
        elif call.responses:
            value, meta = call.responses[0]
            before = call.events[0].event.meta
            new = {name: each for name, each in meta.items() if name not in before or before[name] != each}
            if call.key is not None:
                self._store(call.key, value, new, stored)
            for one in call.events:
                self._respond(one, value, {**one.event.meta, **new})
        else:
            for one in call.events:
                one.done = True
        self._deliver_if_done()

    def _failed(self, one: _Awaiting, status: int, reason: str) -> None:
        text = f"branch: {STATUSES[status]}: {reason}"
        if status != RETRY:
            one.error = RejectError(text)
        else:
            one.error = RetryError(text) if self._options.failures == "retry" else BranchFailedError(text)
        one.done = True

    def _respond(self, one: _Awaiting, value: Any, meta: dict[str, Any]) -> None:
        """Store a response in an event."""
        event = one.event
        self._event[0], self._meta[0] = event.value, meta
        try:
            changed = event.value
            for names, run in self._set:
                changed = with_field(changed, names, copied(run(value)))
            new = {name: copied(run(value)) for name, run in self._new_meta}
            event.value = changed
            event.meta.update(new)
        except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
            one.error = error
        finally:
            self._event[0] = self._meta[0] = None
            one.done = True

    def _store(self, key: str, value: Any, meta: dict[str, Any], stored: list[tuple[str, bytes]] | None) -> None:
        try:
            raw = msgspec.msgpack.encode([value, meta])
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._cache_failed(f"a response can't be stored: {error}")
            return
        if self._memory is not None:
            self._memory.put(key, raw)
        elif stored is not None:
            stored.append((key, raw))

    def _cache_failed(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s: %s: cache: %s", self.node.context.flow, self.node.name, text)
        self.node.count("cache_errors")

    # -- delivery --------------------------------------------------------------------------------------------
    def _deliver_if_done(self) -> None:
        if not self._deliver_soon and self._order and self._order[0].done:
            self._deliver_soon = True
            self.node.later(self._deliver)

    def _deliver(self) -> None:
        self._deliver_soon = False
        out: list[Event] = []
        order = self._order
        while order and order[0].done:
            one = order.popleft()
            if one.error is None:
                out.append(one.event)
            else:
                self.fail(one.event, one.error)
        self.emit(out)
        self.node.wake()
