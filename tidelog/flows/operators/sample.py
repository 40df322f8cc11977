"""``sample``: passes on a sample of the events, and discards the others.

An event that is retried was selected before, so it is selected again. Otherwise, a failed event could be lost.
"""

from __future__ import annotations

import random

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.options.limits import AtLeastOne, Probability
from tidelog.options.structs import Struct


class SampleOptions(Struct):
    """The options of ``sample``. Either ``probability`` or ``every`` is required."""

    probability: Probability | None = None
    # Probability that an event is passed on, from 0 to 1. The short form: `sample: 0.01`.
    every: AtLeastOne | None = None  # Passes on the first of every this many events.
    seed: int | None = None  # Seed of the random numbers, for repeatable choices.

    def __post_init__(self) -> None:
        if (self.probability is None) == (self.every is None):
            raise ValueError("a sample requires either probability or every")
        if self.seed is not None and self.probability is None:
            raise ValueError("seed requires probability")


class SampleOperator(Operator):
    """Implements ``sample``."""

    type = "sample"
    transparent = True
    short = "probability"
    Options = SampleOptions

    def __init__(self, options: SampleOptions) -> None:
        self._probability = options.probability
        self._every = options.every or 1
        self._chance = random.Random(options.seed)
        self._seen = 0

    def process(self, events: list[Event]) -> None:
        good: list[Event] = []
        others: list[Event] = []
        for event in events:
            (good if event.attempt > 1 or self._chosen() else others).append(event)
        self.drop(others, "sample: not chosen")
        self.emit(good)

    def _chosen(self) -> bool:
        if self._probability is not None:
            return self._chance.random() < self._probability
        self._seen += 1
        return self._seen % self._every == 1 % self._every
