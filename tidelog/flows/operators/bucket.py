"""``bucket``: limits the events per second of each class and group; the others are sent to ``overflow``.

Rule 1: ``class``, ``rate`` and ``dimensions`` are options, or in ``event.meta``, where an earlier operator has put
        them. An event without a class or rate fails.
Rule 2: For each class, the ``cardinality`` most recently used groups are stored, and at most ``classes`` classes. A
        forgotten group starts with a full bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.keytext import key_text
from tidelog.flows.operators.tokenbuckets import Buckets, EventRate, Rate
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct

BUCKET: Final = "bucket"  # the reason of discarded events


class BucketOptions(Struct):
    """The options of ``bucket``."""

    class_: str | None = msgspec.field(default=None, name="class")  # A JMESPath expression. `null`: `meta["class"]`.
    rate: EventRate | None = None
    # Events per second in each group. `null`: `meta["rate"]`, where 0 lets no event pass.
    dimensions: list[str] | None = None
    # JMESPath expressions. Events with equal values in all of them form a group. `null`: `meta["dimensions"]`, any
    # value; without it, each class is one group.
    cardinality: AtLeastOne = 1000  # Maximum number of groups per class; the least recently used group is forgotten.
    classes: AtLeastOne = 100  # Maximum number of classes; the least recently used class is forgotten.


class BucketOperator(Operator):
    """Implements ``bucket``."""

    type = "bucket"
    Options = BucketOptions

    def __init__(self, options: BucketOptions | None = None) -> None:
        self._options = options = options or BucketOptions()
        self._class = None if options.class_ is None else expression(options.class_, "class")
        dimensions = options.dimensions
        self._dimensions = None if dimensions is None else [expression(each, "dimensions") for each in dimensions]
        self._known: OrderedDict[str, Buckets] = OrderedDict()  # by class

    def ports(self) -> tuple[str, ...]:
        return ("overflow",)

    def process(self, events: list[Event]) -> None:
        clock = now()
        through: list[Event] = []
        over: list[Event] = []
        for event in events:
            try:
                (through if self._take(event, clock) else over).append(event)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        self.divert(over, "overflow", BUCKET)
        self.emit(through)

    def _take(self, event: Event, clock: float) -> bool:
        meta = event.meta
        name = meta.get("class") if self._class is None else self._class(event.value)
        if name is None:
            raise ValueError("bucket: the event has no class: set the option class, or meta['class']")
        rate: Any = meta.get("rate") if self._options.rate is None else self._options.rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < float("inf"):
            raise ValueError(f"bucket: {rate!r:.100} is not a rate: set the option rate, or meta['rate']")
        if not rate:
            return False
        found = meta.get("dimensions") if self._dimensions is None else [each(event.value) for each in self._dimensions]
        group = f"{rate}/{key_text(found)}"
        return self._buckets(key_text(name)).take(group, Rate.of(rate, max(rate, 1)), clock)

    def _buckets(self, name: str) -> Buckets:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Buckets(self._options.cardinality)
            if len(self._known) > self._options.classes:
                self._known.popitem(last=False)
                self.node.count("forgotten_classes")
        else:
            self._known.move_to_end(name)
        return found
