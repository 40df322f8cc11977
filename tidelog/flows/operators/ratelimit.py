"""``ratelimit``: limits the rate of events with a token bucket for all events, or with one for each key.

Rule 1: With ``block``, at most one batch waits here. Events with the same key stay in order. Sources above are not
        stopped by a reason: the channels fill up, and the sources have no room to send.
Rule 2: A shared limit applies to all instances of the flow, and to all flows with the same ``name``.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from tidelog.client import strings
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.keytext import key_text
from tidelog.flows.operators.serverrequests import ServerRequests, place
from tidelog.flows.operators.tokenbuckets import Buckets, EventRate, Rate
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration
from tidelog.transport.call import Call

RATELIMIT: Final = "ratelimit"  # the reason of discarded events
LEAST: Final = 0.001  # s: the minimum wait
CROWD: Final = 0.005  # s: the maximum wait after a conflict at a shared bucket
KEPT: Final = 1000  # ms after which a full bucket expires on the server


class RateLimitOptions(Struct):
    """The options of ``ratelimit``."""

    rate: EventRate  # Events in the time `per`. The short form: `ratelimit: 100`.
    per: PositiveDuration = PositiveDuration(1.0)  # The time to which `rate` refers.
    burst: AtLeastOne | None = None
    # Maximum number of events that pass at once after an idle time. `null`: the same as `rate`.
    key: str | None = None
    # A JMESPath expression; each of its values has its own bucket. `null`: one bucket for all events.
    method: Literal["block", "discard"] = "block"
    # `block`: events wait. `discard`: events are sent to the port `overflow`.
    keys: AtLeastOne = 10_000
    # Maximum number of keys; the least recently used one is forgotten. It does not apply to a shared limit.
    shared: bool = False
    # Whether all instances share one limit, which is stored on the tidelog server and uses its clock.
    name: str | None = None
    # Name of a shared limit. `null`: derived from the flow's name and the operator's position in it. Flows that use the
    # same name share the limit.

    def __post_init__(self) -> None:
        if self.name is not None and not self.shared:
            raise ValueError("name requires shared: true")


class RateLimitOperator(Operator):
    """Implements ``ratelimit``."""

    type = "ratelimit"
    short = "rate"
    Options = RateLimitOptions

    def __init__(self, options: RateLimitOptions) -> None:
        self._options = options
        self._key = None if options.key is None else expression(options.key, "key")
        self._rate = Rate.of(options.rate / options.per, options.burst or max(options.rate, 1.0))
        self._buckets = Buckets(options.keys)
        self._kept: list[tuple[str, Event]] = []  # at most a batch
        self._timer: TimerHandle | None = None
        self._work = asyncio.Event()  # there are events for which to request tokens

    def ports(self) -> tuple[str, ...]:
        return ("overflow",)

    def needs_server(self) -> bool:
        return self._options.shared

    def start(self) -> None:
        if self._options.shared:
            self.spawn(self._serve())

    def busy(self) -> bool:
        return bool(self._kept)

    def kept(self) -> int:
        return len(self._kept)

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found = [event for _, event in self._kept if wanted(event)]
        if found:
            self._kept = [each for each in self._kept if not wanted(each[1])]
        return found

    def process(self, events: list[Event]) -> None:
        if self._key is None:
            self._kept = [("", each) for each in events]
        else:
            for event in events:
                try:
                    self._kept.append((key_text(self._key(event.value)), event))
                except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                    self.fail(event, error)
        if self._options.shared:
            self._work.set()
        else:
            self._go()

    def _go(self) -> None:
        clock = now()
        self._timer = None
        self._pass(lambda key: self._buckets.take(key, self._rate, clock))
        if self._kept:
            wait = min(self._buckets.wait(key, self._rate, clock) for key in {key for key, _ in self._kept})
            self._timer = self.node.after(max(wait, LEAST), self._go)

    def _pass(self, take: Callable[[str], bool]) -> None:
        """Emit waiting events for which there are tokens. The others wait or overflow."""
        through: list[Event] = []
        left: list[tuple[str, Event]] = []
        empty: set[str] = set()
        for key, event in self._kept:
            if key not in empty and take(key):
                through.append(event)
            else:
                empty.add(key)
                left.append((key, event))
        self._kept = left
        if left and self._options.method == "discard":
            self._kept = []
            self.divert([event for _, event in left], "overflow", RATELIMIT)
        self.emit(through)

    async def _serve(self) -> None:
        options = self._options
        server = ServerRequests(self)
        buckets = SharedBuckets(server, place(self, RATELIMIT, options.name), self._rate, self.node.context.random)
        try:
            while True:
                if not self._kept:
                    self._work.clear()
                    await self._work.wait()
                    continue
                taken, wait = await buckets.take(Counter(key for key, _ in self._kept))
                self._pass(lambda key, taken=taken: _one(taken, key))  # type: ignore[misc]
                self.node.wake()
                if self._kept:
                    await asyncio.sleep(max(wait, LEAST))
        finally:
            await server.close()

    def forget(self) -> None:
        self._kept = []


def _one(taken: dict[str, int], key: str) -> bool:
    left = taken.get(key, 0)
    if left:
        taken[key] = left - 1
    return left > 0


class SharedBuckets:
    """The buckets of one limit that several processes share. They are stored on the server and use its clock.

        tidelog:flows:ratelimit:<name>:<key>    1732300000123456:7f3a9c0d   us since 1970 at which it is full; writer

    Rule 1: A bucket is changed by SET IFEQ with the value that was read (SET NX if there was none), so a token is never
            taken twice. If the value has changed meanwhile, it is read again.
    Rule 2: Each value is unique, so a client that repeats a change after a lost reply can tell whether the first one
            was applied.
    Rule 3: A bucket expires some time after it is full, because a full bucket is equivalent to none.
    """

    def __init__(self, server: ServerRequests, prefix: str, rate: Rate, chance: random.Random) -> None:
        self._server = server
        self._prefix = prefix
        self._step = max(round(rate.step * 1e6), 1)  # us
        self._burst = max(round(rate.burst * 1e6), self._step)  # us
        self._random = chance

    async def take(self, wanted: Mapping[str, int]) -> tuple[dict[str, int], float]:
        """Take tokens. Return their number for each key, and the seconds until there may be more."""
        taken: dict[str, int] = {}
        wait = 0
        keys = list(wanted)
        while keys:
            clock, *found = await self._server.together(
                Call(("TIME",), _microseconds), *(strings.get(self._prefix + key) for key in keys)
            )
            changes: list[tuple[str, int, bytes]] = []
            calls = []
            for key, old in zip(keys, found, strict=True):
                full = max(int(old.partition(b":")[0]) if old else 0, clock)
                count = min(wanted[key], (clock + self._burst - full) // self._step)
                if count < wanted[key]:
                    more = full + (max(count, 0) + 1) * self._step - self._burst - clock
                    wait = min(wait or more, more)
                if count <= 0:
                    taken[key] = 0
                    continue
                later = full + count * self._step
                new = b"%d:%016x" % (later, self._random.getrandbits(64))
                ms = (later - clock) // 1000 + KEPT
                name = self._prefix + key
                calls.append(strings.set_equal(name, new, old, ms) if old else strings.set_absent(name, new, ms))
                changes.append((key, count, old or b""))
                taken[key] = count
            keys = []
            for (key, _, old), before, call in zip(changes, await self._changed(calls), calls, strict=True):
                if (before or b"") != old and before != call.args[2]:  # another process has changed it
                    keys.append(key)
            if keys:
                await asyncio.sleep(self._random.random() * CROWD)
        return taken, wait / 1e6

    async def _changed(self, calls: list[Call[bytes | None]]) -> list[bytes | None]:
        return await self._server.together(*calls) if calls else []


def _microseconds(reply: list[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])
