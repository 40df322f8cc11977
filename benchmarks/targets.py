"""The targets of tidelog compared with redis-server on the same machine: a floor and a goal for some rows.

A ratio above 1 always means that tidelog is better: its rate over Redis's, or Redis's bytes (seconds) over its own.
Rows of published messages are compared with nats-server.
"""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    floor: float
    goal: float
    beside: str = "redis"  # the server whose figure the ratio is to

    def verdict(self, ratio: float) -> str:
        """``goal``, ``floor`` or ``missed``."""
        if ratio >= self.goal:
            return "goal"
        return "floor" if ratio >= self.floor else "missed"

    def __str__(self) -> str:
        return f"{self.floor:g} / {self.goal:g}"


def _cpu() -> dict[str, Target]:
    """Of the workload ``cpu``: the floors at P 1 and P 16, then the goals. Redis's commands may take 5 % more."""
    both = {
        "PING": (0.9, 0.8, 1, 1),
        "SET": (0.85, 0.75, 1, 1),
        "GET": (0.85, 0.75, 1, 1),
        "INCR": (0.85, 0.7, 1, 0.9),
        "SET, random keys": (0.95, 0.8, 1, 1),
        "GET, random keys": (0.95, 0.8, 1, 1),
        "INCR, random keys": (0.95, 0.8, 1, 1),
        "append, one key": (0.95, 1.4, 1.1, 2),
        "append, 1,000,000 keys": (1.1, 1.6, 1.3, 2),
        "append and evict": (0.85, 0.9, 1, 1.3),
        "append, 1 KB": (0.85, 0.85, 1, 1.2),
        "append, 10 KB": (0.8, 0.8, 1, 1),
        "newest 10": (1, 1, 1.3, 2),
        "oldest 10": (1, 2, 1.2, 3),
    }
    made = {"append, 1 client, P 1": Target(0.7, 0.9)}
    for name, (floor_1, floor_16, goal_1, goal_16) in both.items():
        made[f"{name}, P 1"] = Target(floor_1, goal_1)
        made[f"{name}, P 16"] = Target(floor_16, goal_16)
    made |= {
        "cold range of 10": Target(0.9, 1),
        "cold range of 100": Target(1.1, 1.5),
        "group read of 1 and ack": Target(0.95, 1.2),
        "group read of 10 and ack": Target(1.1, 1.5),
    }
    for name, target in list(made.items()):
        if name.startswith(("append", "group read")):
            by_x = name.replace("append", "xadd", 1).replace("group read", "xreadgroup", 1)
            made[by_x] = Target(round(target.floor * 0.95, 3), round(target.goal * 0.95, 3))
    published = {"64 B": (0.9, 1.9, 4), "1 KB": (0.9, 1.2, 1.2), "10 KB": (0.6, 0.7, 0.7)}
    for payload, floors in published.items():
        for window, floor in zip((1, 16, 64), floors, strict=True):
            name = f"publish JSON of {payload}, 8 connections, {window} in flight"
            made[name] = Target(floor, max(1, floor), "nats")
    return {f"cpu, {name}": target for name, target in made.items()}


TARGETS: dict[str, Target] = {  # title of a row -> what is asked of it
    "append, always, 50 clients, P 1": Target(0.95, 1.1),
    "append, always, 50 clients, P 16": Target(1.1, 1.5),
    "append, always, 50 clients, P 64": Target(1.1, 1.5),
    "append, everysec, 50 clients, P 1": Target(0.95, 1),
    "append, everysec, 50 clients, P 16": Target(0.8, 1.2),
    "append, everysec, 50 clients, P 64": Target(0.8, 1.2),
    "tmappend of 100, P 16, compared with XADD at P 64": Target(2, 5),
    "range, COUNT 1000, cached": Target(3, 5),
    "range, COUNT 100, cached": Target(1.3, 2),
    "range, COUNT 10, cached": Target(0.9, 1.1),
    "range, COUNT 1000, cold": Target(1.6, 3),
    "range, COUNT 100, cold": Target(0.8, 1.5),
    "range, COUNT 10, cold": Target(0.6, 1),
    "group, read 100 and ack": Target(1, 3),
    "fanout, 1,000 blocked readers, deliveries": Target(1, 2),
    "xadd, always, 50 clients, P 1": Target(1, 1.1),
    "xadd, always, 50 clients, P 16": Target(1.1, 1.4),
    "xadd, always, 50 clients, P 64": Target(1.2, 1.5),
    "xadd, everysec, 50 clients, P 1": Target(0.93, 1),
    "xadd, everysec, 50 clients, P 16": Target(0.85, 1.1),
    "xadd, everysec, 50 clients, P 64": Target(0.95, 1.2),
    "xrange, COUNT 1000, cached": Target(1.5, 3),
    "xrange, COUNT 100, cached": Target(1, 1.3),
    "xrange, COUNT 10, cached": Target(0.9, 1),
    "xgroup, read 100 and ack": Target(0.8, 1.2),
    "xfanout, 1,000 blocked readers, deliveries": Target(1, 1.5),
    "xmemory, an entry": Target(3, 10),
    "xmemory, a pending message, 10 consumers": Target(2, 4),
    "xdel, every second of 1,000,000": Target(1, 2),
    "space, sensor, memory": Target(3, 10),
    "space, json, memory": Target(3, 10),
    "pending, memory per message": Target(1, 3),
    **_cpu(),
    "restart, 10,000,000 entries, as it stopped": Target(20, 100),
    "restart, 10,000,000 entries, Redis from RDB": Target(20, 100),
}
