"""What tidelog is to reach beside redis-server on the same machine: a floor and a goal for each row that has them.

A ratio above 1 always means that tidelog is better: its rate over Redis's, or Redis's bytes (seconds) over its own.
"""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    floor: float
    goal: float

    def verdict(self, ratio: float) -> str:
        """``goal``, ``floor`` or ``missed``."""
        if ratio >= self.goal:
            return "goal"
        return "floor" if ratio >= self.floor else "missed"

    def __str__(self) -> str:
        return f"{self.floor:g} / {self.goal:g}"


TARGETS: dict[str, Target] = {  # title of a row -> what is asked of it
    "append, always, 50 clients, P 1": Target(0.95, 1.1),
    "append, always, 50 clients, P 16": Target(1.1, 1.5),
    "append, always, 50 clients, P 64": Target(1.1, 1.5),
    "append, everysec, 50 clients, P 1": Target(0.95, 1),
    "append, everysec, 50 clients, P 16": Target(0.8, 1.2),
    "append, everysec, 50 clients, P 64": Target(0.8, 1.2),
    "tmappend of 100, P 16, beside XADD at P 64": Target(2, 5),
    "range, COUNT 1000, cached": Target(3, 5),
    "range, COUNT 100, cached": Target(1.3, 2),
    "range, COUNT 10, cached": Target(0.9, 1.1),
    "range, COUNT 1000, cold": Target(1.6, 3),
    "range, COUNT 100, cold": Target(0.8, 1.5),
    "range, COUNT 10, cold": Target(0.6, 1),
    "group, read 100 and ack": Target(1, 3),
    "fanout, 1,000 blocked readers, deliveries": Target(1, 2),
    "space, sensor, memory": Target(3, 10),
    "space, json, memory": Target(3, 10),
    "pending, memory a message": Target(1, 3),
    "restart, 10,000,000 entries, as it stopped": Target(20, 100),
    "restart, 10,000,000 entries, Redis from RDB": Target(20, 100),
}
