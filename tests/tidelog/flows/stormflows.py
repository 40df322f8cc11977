"""Flows for storms: a source, a shape, sinks. Each says which deliveries there must be for the events that were sent.

An event is ``{"n": ..., "pair": n // 2, "keep": ..., "by": ""}``. A delivery is (sink, by, n): ``by`` is the branch
that the event took where there are several.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.flows import RetryError

Delivery = tuple[str, str, int]

BATCH: Final = 10
SOON: Final = {"retry": {"first": "50ms", "most": "300ms", "min_uptime": "200ms"}}
SOURCES: Final = ("stream", "instances", "file", "http", "wal", "file_wal")
SINKS: Final = ("http", "stream", "file")
_tried: set[int] = set()


# -- operators -----------------------------------------------------------------------------------------------
def mark(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "marked": True}


def left(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "by": "left"}


def right(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "by": "right"}


def fail(value: dict[str, Any]) -> dict[str, Any]:
    """Each thirteenth always, each seventh the first time."""
    number = value["n"]
    if number % 13 == 0:
        raise ValueError("never")
    if number % 7 == 0 and number not in _tried:
        _tried.add(number)
        raise RetryError("not now")
    return value


def hopeless(value: dict[str, Any]) -> dict[str, Any]:
    """Each thirteenth is to be tried again, always."""
    if value["n"] % 13 == 0:
        raise RetryError("never now")
    return value


def slow(value: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return value


async def later(value: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(random.uniform(0.0, 0.02))
    return value


_MODULE: Final = "tests.tidelog.flows.stormflows"
_PLAIN: Final = ["in -> a -> out0"]
_PAIRS: Final = {"low": {"min": "n"}, "high": {"max": "n"}, "count": "count"}


def _fan(count: int) -> tuple[dict[str, Any], list[str], int]:
    return {"a": [{"python": f"{_MODULE}:mark"}]}, ["in -> a", *(f"a -> out{at}" for at in range(count))], count


# pipelines, connections, sinks
SHAPES: Final[dict[str, tuple[dict[str, Any], list[str], int]]] = {
    "one": ({}, ["in -> out0"], 1),
    "chain": (
        {"a": [{"python": f"{_MODULE}:mark"}, {"where": "n >= `0`"}], "b": [{"backpressure": "1s"}, {"retry": 2}]},
        ["in -> a -> b -> out0"],
        1,
    ),
    "fan2": _fan(2),
    "fan5": _fan(5),
    "diamond": (
        {"l": [{"python": f"{_MODULE}:left"}], "r": [{"python": f"{_MODULE}:right"}], "z": []},
        ["in -> l -> z -> out0", "in -> r -> z"],
        1,
    ),
    "fanin": ({"a": [{"python": f"{_MODULE}:mark"}]}, ["in -> a -> out0", "in2 -> a"], 1),
    "roundrobin": (
        {"a": [{"roundrobin": {"outputs": ["x", "y"], "probe_after": "100ms"}}]},
        ["in -> a", "a.x -> out0", "a.y -> out1"],
        2,
    ),
    "fallback": ({"a": ["fallback"]}, ["in -> a -> out0", "a.fallback -> out1"], 2),
    "batch": ({"a": [{"batch": {"count": BATCH, "timeout": "100ms"}}]}, _PLAIN, 1),
    "unbatch": ({"a": [{"batch": {"count": BATCH, "timeout": "100ms"}}, "unbatch"]}, _PLAIN, 1),
    "window": ({"a": [{"window": {"time": "200ms", "key": "pair", "aggregates": _PAIRS}}]}, _PLAIN, 1),
    "filter": ({"a": [{"where": "keep"}]}, _PLAIN, 1),
    "failing": ({"a": [{"python": f"{_MODULE}:fail"}]}, _PLAIN, 1),
    "hopeless": ({"a": [{"python": f"{_MODULE}:hopeless"}]}, ["in -> a -> out0", "a -> out1"], 2),
    "dedup": ({"a": [{"dedup": {"key": "n", "lease": "1s"}}]}, _PLAIN, 1),
    "nested": (
        {"a": [{"batch": {"count": 3, "timeout": "50ms"}}], "b": [{"batch": {"count": 4, "timeout": "80ms"}}]},
        ["in -> a -> b -> out0"],
        1,
    ),
    "unnested": (
        {
            "a": [{"batch": {"count": 4, "timeout": "50ms"}}, {"batch": {"count": 3, "timeout": "50ms"}}, "unbatch"],
            "b": ["split", {"python": f"{_MODULE}:mark"}],
        },
        ["in -> a -> b -> out0"],
        1,
    ),
    "threads": ({"a": [{"python": {"call": f"{_MODULE}:slow", "in": "thread", "concurrency": 4}}]}, _PLAIN, 1),
    "processes": ({"a": [{"python": {"call": f"{_MODULE}:mark", "in": "process", "concurrency": 2}}]}, _PLAIN, 1),
    "async": ({"a": [{"python": {"call": f"{_MODULE}:later", "concurrency": 16}}, {"delay": "50ms"}]}, _PLAIN, 1),
    "limited": (
        {"a": [{"ratelimit": {"rate": 150, "shared": True}}, {"ratelimit": {"rate": 200, "key": "keep"}}]},
        _PLAIN,
        1,
    ),
    "overflow": (
        {"a": [{"backpressure": {"timeout": "300ms", "method": "discard"}}]},
        ["in -> a -> out0", "a.overflow -> out1"],
        2,
    ),
    "wide": (
        {
            "a": [{"roundrobin": {"outputs": ["x", "y"], "probe_after": "100ms", "most": 20}}],
            "b": [{"batch": {"count": 5, "timeout": "50ms"}}, "fallback"],
            "c": [{"backpressure": "300ms"}],
        },
        ["in -> a", "a.x -> b -> out0", "b.fallback -> out1", "a.y -> c -> out1"],
        2,
    ),
}
ANY_SINK: Final = ("roundrobin", "fallback", "overflow", "wide")


@dataclass
class Case:
    """One flow of a storm, and what was sent to it."""

    name: str
    source: str
    shape: str
    sink: str
    folder: Path
    unsettled: int = 200
    ports: list[int] = field(default_factory=list)  # of its HTTP servers
    peer: str = ""  # URL before the path
    sent: set[int] = field(default_factory=set)  # accepted by the source
    refused: set[int] = field(default_factory=set)  # answered by 422
    next: int = 0
    by_api: bool = False  # deployed over HTTP, not in the file
    deployed: bool = True
    seen: int = 0  # deliveries when it was looked last
    options: dict[str, Any] = field(default_factory=dict)  # of the flow
    resent: int = 0  # events that may have been taken by the source twice
    hurts: int = 0  # times when everything under way may have been sent again
    failed: int = 0  # events in requests that the peer did not answer well
    delivered: Counter[Delivery] = field(default_factory=Counter)  # to the peer

    def __str__(self) -> str:
        return f"{self.name}: {self.source} {self.shape} {self.sink}"

    @property
    def sources(self) -> list[str]:
        return ["in", "in2"] if self.shape == "fanin" else ["in"]

    @property
    def sinks(self) -> list[str]:
        return [f"out{at}" for at in range(SHAPES[self.shape][2])]

    @property
    def instances(self) -> int:
        return 2 if self.source == "instances" else 1

    @property
    def over_http(self) -> bool:
        return self.source in ("http", "wal")

    @property
    def has_wal(self) -> bool:
        return self.source in ("wal", "file_wal")

    def kind(self, sink: str) -> str:
        """A shape with several sinks has sinks of several types."""
        return SINKS[(SINKS.index(self.sink) + int(sink[3:])) % len(SINKS)]

    def source_of(self, number: int) -> str:
        return self.sources[number % len(self.sources)]

    def stream(self, source: str) -> str:
        return f"{self.name}:{source}"

    def file(self, name: str) -> Path:
        return self.folder / f"{self.name}.{name}.jsonl"

    def event(self, number: int) -> dict[str, Any]:
        return {"n": number, "pair": number // 2, "keep": number % 3 != 0, "by": ""}

    # -- its declaration -------------------------------------------------------------------------------------
    def given(self) -> dict[str, Any]:
        pipelines, connect, _ = SHAPES[self.shape]
        connectors: dict[str, Any] = {}
        for at, name in enumerate(self.sources):
            connectors[name] = self._source(name, at)
        for name in self.sinks:
            connectors[name] = self._sink(name)
        if self.has_wal:
            logs = [f"log{at}" for at in range(len(self.sources))]
            for name in logs:
                connectors[name] = {"type": "wal", "reconnect": SOON, "max_unsettled": self.unsettled}
                if self.shape == "hopeless":
                    connectors[name]["on_error"] = [{"retry": {"attempts": 2}}, "dead_letter"]
            behind = dict(zip(self.sources, logs, strict=True))
            parts = [each.split(" -> ") for each in connect]
            connect = [" -> ".join([behind.get(part[0], part[0]), *part[1:]]) for part in parts]
            connect += [f"{source} -> {log}" for source, log in behind.items()]
        return {
            "instances": self.instances, "debug": True, "drain_timeout": "15s",
            "connectors": connectors, "pipelines": pipelines, "connect": connect, **self.options,
        }  # fmt: skip

    def _source(self, name: str, at: int) -> dict[str, Any]:
        common: dict[str, Any] = {"reconnect": SOON, "max_unsettled": self.unsettled}
        if self.shape == "hopeless" and not self.over_http:
            common["on_error"] = [{"retry": {"attempts": 2}}, "dead_letter"]
        if self.over_http:
            return {"type": "http_server", "port": self.ports[at], "wait": "5s", "codec": "json", **common}
        if self.source.startswith("file"):
            return {
                "type": "file", "path": str(self.file(name)), "tail": True, "poll": "20ms", "linger": "300ms",
                "on_error": {"retry": {"first": "50ms"}}, **common,
            }  # fmt: skip
        return {
            "type": "stream", "key": self.stream(name), "group": "g", "retry": "1s", "codec": "json",
            "on_error": {"retry": {"first": "50ms"}}, **common,
        }  # fmt: skip

    def _sink(self, name: str) -> dict[str, Any]:
        kind = self.kind(name)
        if kind == "http":
            url = f"{self.peer}/{self.name}/{name}"
            return {
                "type": "http_client", "url": url, "request_timeout": "1500ms", "connect_timeout": "1s",
                "reconnect": SOON,
            }  # fmt: skip
        if kind == "stream":
            return {"type": "stream", "key": f"{self.name}:{name}", "codec": "json", "reconnect": SOON}
        return {"type": "file", "path": str(self.file(name)), "rotate_bytes": "100KB", "reconnect": SOON}

    # -- what must be there ----------------------------------------------------------------------------------
    def found(self, sink: str, value: Any) -> Iterable[Delivery]:
        """What a value that a sink got delivers."""
        if isinstance(value, list):
            return [one for each in value for one in self.found(sink, each)]
        if "aggregates" in value:
            made = value["aggregates"]
            numbers = {made["low"], made["high"]} if made["count"] > 1 else {made["low"]}
            return [(sink, "", number) for number in numbers]
        return [(sink, value["by"], value["n"])]

    def missing(self, delivered: Iterable[Delivery], dead: Collection[int], numbers: Iterable[int]) -> list[Any]:
        """Deliveries that there must be for numbers that were accepted, and are not."""
        there = set(delivered)
        if self.shape in ANY_SINK:
            some = {number for _, _, number in there}
            return [number for number in numbers if number not in some]
        missing: list[Any] = []
        for number in numbers:
            if self.shape == "filter" and number % 3 == 0:
                continue
            if self.shape == "failing" and number % 13 == 0:
                if number not in dead and number not in self.refused:
                    missing.append(("dead", number))
                continue
            if self.shape == "hopeless" and number in dead:
                continue  # it may have been tried too often while a sink was away
            branches = ("left", "right") if self.shape == "diamond" else ("",)
            for sink in self.sinks:
                missing += [each for by in branches if (each := (sink, by, number)) not in there]
        return missing

    def unwanted(self, delivered: Iterable[Delivery]) -> list[Delivery]:
        """Deliveries of what must not come there, or was never sent."""
        return [
            each for each in delivered
            if each[2] >= self.next or (self.shape == "filter" and each[2] % 3 == 0)
            or (self.shape in ("failing", "hopeless") and each[2] % 13 == 0)
        ]  # fmt: skip

    @property
    def duplicates_most(self) -> int:
        """For each time that the process or a server was hurt what was under way, and what failed and was tried again;
        of these each branch may have a copy more.
        """
        branches = len(self.sinks) * (2 if self.shape == "diamond" else 1)
        under_way = self.unsettled * len(self.sources) * self.instances
        stages = 2 if self.has_wal else 1
        return branches * (under_way * stages * self.hurts + self.failed + self.resent)


def made(name: str, folder: Path, chance: random.Random) -> Case:
    case = Case(name, chance.choice(SOURCES), chance.choice(list(SHAPES)), chance.choice(SINKS), folder)
    if case.shape == "hopeless" and case.source == "http":
        case.source = "wal"  # its peers would ask for ever
    case.unsettled = chance.choice([2, 20, 200, 200])
    case.by_api = chance.random() < 0.3
    if chance.random() < 0.2:
        case.options["queue"] = 1
    if chance.random() < 0.2:
        case.options["drain_timeout"] = "500ms"
    return case


def document(cases: Iterable[Case]) -> str:
    """A file of flows: JSON is YAML."""
    return json.dumps({"flows": {each.name: each.given() for each in cases if not each.by_api}}, indent=1)
