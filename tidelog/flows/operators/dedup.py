"""``dedup``: passes on one event per key. Later events are discarded once it has been delivered.

    tidelog:flows:dedup:<name>:<key>    <marker>  an event with this key is in flight; expires after ``lease``
                                        done      it was delivered; expires after ``ttl``

Rule 1: A key is set to done when its event is settled as OK or DISCARD. Otherwise it is deleted. The source is notified
        after that, so an event whose first attempt failed is not mistaken for its own duplicate.
Rule 2: An event whose key is in flight waits for the outcome of the first event. It is then discarded as a duplicate or
        passed on instead. At most ``max_waiting`` events wait; while they do, no further events are accepted. A drain
        returns them to their source.
Rule 3: The markers of a process that died expire with their lease.
Rule 4: A marker belongs to one event, so a call can be repeated if its reply was lost.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Final

from tidelog.client import strings
from tidelog.flows.api.event import BATCH, Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import DISCARD, RETRY, Token, settle_all
from tidelog.flows.operators.hops import mark, parts
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.keytext import key_text
from tidelog.flows.operators.serverrequests import ServerRequests, place
from tidelog.operating.tasks import set_within
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import Interval
from tidelog.transport.call import Call

DEDUP: Final = "dedup"
DONE: Final = b"done"
LOOK: Final = 0.05  # s until waiting events are checked again; doubled up to LOOK_MOST
LOOK_MOST: Final = 1.0  # s


class DedupOptions(Struct):
    """The options of ``dedup``."""

    key: str  # A JMESPath expression. The short form: `dedup: order_id`.
    ttl: Interval = Interval(3600.0)  # How long a key is remembered after its event is delivered.
    lease: Interval = Interval(60.0)  # How long duplicates wait for an event that is in flight.
    name: str | None = None
    # Name of the set of keys. `null`: derived from the flow's name and the operator's position in it. Flows that use
    # the same name share their keys.
    max_waiting: AtLeastOne = 1000
    # Maximum number of waiting events. When that many are waiting, the operator accepts no more events.


@dataclass(slots=True, eq=False)
class Item:
    """An event that was received and whose settlement is not complete."""

    event: Event | None  # None: it was sent; its token refers to this object, so keeping the event would form a cycle
    key: str
    mark: bytes
    left: int = 0  # tokens that are not settled
    failed: bool = False  # one of them was settled as RETRY or REJECT
    settled: list[Token] = field(default_factory=list)


class DedupOperator(Operator):
    """Implements ``dedup``."""

    type = "dedup"
    short = "key"
    Options = DedupOptions

    def __init__(self, options: DedupOptions) -> None:
        self._options = options
        self._key = expression(options.key, "key")
        self._came: list[Item] = []  # at most a batch
        self._waiting: list[Item] = []  # their key is in flight
        self._asking = 0  # waiting events that are being checked on the server
        self._back: list[Item] = []  # settled; the server and the source must be notified
        self._look_at = 0.0  # event loop time of the next check of the waiting events
        self._look = LOOK
        self._work = asyncio.Event()
        self._drains = False
        self._number = 0
        self._self = uuid.uuid4().hex

    def ports(self) -> tuple[str, ...]:
        return ("duplicates",)

    def needs_server(self) -> bool:
        return True

    def start(self) -> None:
        self.spawn(self._serve())

    def busy(self) -> bool:
        return bool(self._came) or len(self._waiting) + self._asking >= self._options.max_waiting

    def kept(self) -> int:
        return len(self._came) + len(self._waiting) + self._asking

    def drain(self) -> None:
        self._drains = True
        waiting, self._waiting = self._waiting, []
        self._return(waiting)

    def process(self, events: list[Event]) -> None:
        prefix = place(self, DEDUP, self._options.name)
        for event in events:
            try:
                found = self._key(event.value)
                if found is None:
                    raise ValueError(f"dedup: the event has no key: {self._options.key} returns null")
                key = prefix + key_text(found)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
                continue
            self._number += 1
            self._came.append(Item(event, key, f"{self._self}:{self._number}".encode()))
        self._work.set()

    def settled(self, tokens: list[Token]) -> None:
        for token in tokens:
            item: Item = token.key
            item.settled.append(token)
            item.failed = item.failed or token.status > DISCARD
            item.left -= 1
            if not item.left:
                self._back.append(item)
        self._work.set()

    # -- with the server -------------------------------------------------------------------------------------
    async def _serve(self) -> None:
        server = ServerRequests(self)
        try:
            while True:
                self._work.clear()
                if self._back:
                    await self._tell(server)
                elif self._came:
                    await self._ask(server, self._came)
                    self._came = []
                    self.node.wake()
                elif self._waiting and now() >= self._look_at:
                    await self._ask_again(server)
                else:
                    await self._sleep()
        finally:
            await server.close()

    async def _sleep(self) -> None:
        timeout = max(self._look_at - now(), 0.0) if self._waiting else None
        await set_within(self._work, timeout)

    async def _tell(self, server: ServerRequests) -> None:
        """Record the outcomes on the server, then settle the parents."""
        items, self._back = self._back, []
        ttl = round(self._options.ttl * 1000)
        for first in range(0, len(items), BATCH):
            some = items[first : first + BATCH]
            await server.together(
                *(
                    strings.delete_equal(each.key, each.mark)
                    if each.failed
                    else Call(("SET", each.key, DONE, "PX", ttl), bool)
                    for each in some
                )
            )
            for each in some:
                settled, each.settled = each.settled, []
                super().settled(settled)
        self._look_at, self._look = 0.0, LOOK  # a waiting event may have the key of one of these

    async def _ask_again(self, server: ServerRequests) -> None:
        waiting, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        self._asking = len(waiting)
        left = len(self._waiting)
        await self._ask(server, waiting)
        self._asking = 0
        self._look_at = now() + (self._look if len(self._waiting) > left else 0.0)
        self._look = min(self._look * 2, LOOK_MOST)
        self.node.wake()

    async def _ask(self, server: ServerRequests, items: list[Item]) -> None:
        if not items:
            return
        lease = round(self._options.lease * 1000)
        found = await server.together(*(strings.set_absent(each.key, each.mark, lease) for each in items))
        through: list[Event] = []
        twice: list[Event] = []
        waiting: list[Item] = []
        for item, before in zip(items, found, strict=True):
            event = item.event
            if event is None:
                continue
            if before is None or before == item.mark:
                item.left = mark(self.node, event, parts(event.token), lambda _, item=item: item)  # type: ignore[misc]
                through.append(event)
                item.event = None
            elif before == DONE:
                twice.append(event)
            else:
                waiting.append(item)
        self.emit(through)
        self.divert(twice, "duplicates", "dedup: a duplicate")
        if self._drains:
            self._return(waiting)
        elif waiting:
            if not self._waiting:
                self._look_at, self._look = now() + LOOK, LOOK
            self._waiting += waiting

    def _return(self, items: list[Item]) -> None:
        events = [each.event for each in items if each.event is not None]
        settle_all(events, RETRY, f"{self.node.name}: an event with the same key is in flight")

    def forget(self) -> None:
        for each in self._back:
            each.settled = []
        self._came, self._waiting, self._back = [], [], []
