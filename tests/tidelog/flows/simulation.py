"""A flow in a simulation: random order of everything, random faults, all invariants watched.

``run(Case(...))`` raises AssertionError where one is broken. ``case(seed)`` makes a case, ``shrunk`` a smaller one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tests.tidelog.flows.simoperators import Batch, Failing, Hop, Unbatch, Where, ids
from tests.tidelog.flows.simpeers import Peer, peer_options
from tidelog.flows import Event, op
from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.connector import Deferred, Outcome, Source
from tidelog.flows.api.connectoroptions import (
    ConnectorOptions,
    ReconnectOptions,
    ReconnectRetryOptions,
    SourceErrorPolicy,
)
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import PAUSED, WINDOW_FULL, Signal
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY, Token
from tidelog.flows.connectors.builtin.script import ScriptConnector, ScriptOptions
from tidelog.flows.declare import operator_spec
from tidelog.flows.operators.passthrough import PassthroughOperator as Passthrough
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.runtime.sourcenode import SourceNode
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec, OperatorSpec, PipelineSpec
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate
from tidelog.options.structs import Problems
from tidelog.options.units import Duration

HOUR = 3600.0
ACTS = (
    "ok", "fails", "sometimes", "one", "slow", "blocks", "hangs", "twice", "late", "after_cancel", "disconnects",
    "raises", "reject",
)  # fmt: skip
CONTROLS = ("none", "pause storm", "drain mid-batch", "flapping breaker", "reconnect", "redeploy")

Make = Callable[[], Operator]
Way = tuple[str, ...]  # names of pipelines, the last one's target a sink


@dataclass(frozen=True)
class Topology:
    """pipelines: operators by name. links: as in a flow. sinks: what an event with a number is delivered to."""

    pipelines: dict[str, tuple[Make, ...]]
    links: tuple[str, ...]
    reaches: Callable[[int], set[str]] = lambda _: {"k0"}
    sources: int = 1
    dies: Callable[[int], bool] = lambda _: False  # a dead letter, whatever the sinks do


def _fan_out(number: int) -> Topology:
    sinks = [f"k{each}" for each in range(number)]
    return Topology({"p": (Passthrough,)}, ("s0 p", *(f"p {each}" for each in sinks)), lambda _: set(sinks))


def _shipped(type: str, **options: Any) -> Make:  # noqa: A002 - what files call it
    """An operator as flows have it."""
    problems = Problems()
    made = operator_spec(op(type, **options), type, problems)
    assert made is not None, problems.found
    return made.make


MIDDLE: Final = {"where": "id < `12`", "port": "middle"}
HIGH: Final = {"where": "id > `5`", "port": "high"}
TOP: Final = {"where": "id > `14`", "port": "out"}

TOPOLOGIES: dict[str, Topology] = {
    "1:1": Topology({"p": (Passthrough,)}, ("s0 p", "p k0")),
    "no pipeline": Topology({}, ("s0 k0",)),
    "chain": Topology({"p": (Passthrough, Passthrough), "q": (Passthrough,)}, ("s0 p", "p q", "q k0")),
    "fan-out 2": _fan_out(2),
    "fan-out 5": _fan_out(5),
    "diamond": Topology(
        {"a": (Passthrough,), "b": (Passthrough,), "c": (Passthrough, Passthrough), "d": (Passthrough,)},
        ("s0 a", "a b", "a c", "b d", "c d", "d k0"),
    ),
    "fan-in": Topology({"p": (Passthrough,)}, ("s0 p", "s1 p", "p k0"), sources=2),
    "batch": Topology({"p": (lambda: Batch(3, 0.5),)}, ("s0 p", "p k0")),
    "batch and unbatch": Topology({"p": (lambda: Batch(4, 0.5), Unbatch)}, ("s0 p", "p k0")),
    "batch, then fan-out": Topology({"p": (lambda: Batch(4, 0.5),)}, ("s0 p", "p k0", "p k1"), lambda _: {"k0", "k1"}),
    "window": Topology({"p": (lambda: Batch(1000, 2.0),)}, ("s0 p", "p k0")),
    "filter": Topology(
        {"p": (lambda: Where(lambda number: number % 3 != 0),)}, ("s0 p", "p k0"),
        lambda number: {"k0"} if number % 3 else set(),
    ),
    "filtered branch": Topology(
        {"p": (Passthrough,), "q": (lambda: Where(lambda number: number % 2 == 0),)},
        ("s0 p", "p k0", "p q", "q k1"),
        lambda number: {"k0"} if number % 2 else {"k0", "k1"},
    ),
    "failing operator": Topology(
        {"p": (lambda: Failing(lambda number: number % 7 == 3, lambda number: number % 5 == 1),)}, ("s0 p", "p k0"),
        dies=lambda number: number % 7 == 3,
    ),
    "failing operator with err": Topology(
        {"p": (lambda: Failing(lambda number: number % 7 == 3, lambda number: number % 5 == 1),)},
        ("s0 p", "p k0", "p.err k1"),
        lambda number: {"k1"} if number % 7 == 3 else {"k0"},
    ),
    "hop": Topology({"p": (Passthrough, Hop, Passthrough)}, ("s0 p", "p k0", "p k1"), lambda _: {"k0", "k1"}),
    "shipped batch": Topology({"p": (_shipped("batch", count=3, timeout="500ms"),)}, ("s0 p", "p k0")),
    "shipped batch and unbatch": Topology(
        {"p": (_shipped("batch", count=4, timeout="500ms"), _shipped("unbatch"))}, ("s0 p", "p k0", "p k1"),
        lambda _: {"k0", "k1"},
    ),
    "shipped retry": Topology(
        {"p": (_shipped("retry", attempts=2),)}, ("s0 p", "p k0", "p k1"), lambda _: {"k0", "k1"}
    ),
    "shipped retry of batches": Topology(
        {"p": (_shipped("batch", count=3, timeout="1s"), _shipped("retry", attempts=1, first="0s"))}, ("s0 p", "p k0"),
    ),
    "shipped backpressure": Topology(
        {"p": (_shipped("backpressure", timeout="200ms", steps=["50ms", "1s"]),)}, ("s0 p", "p k0"),
    ),
    "shipped delay and backpressure": Topology(
        {"p": (_shipped("delay", time="100ms"), _shipped("backpressure", timeout="1s"))}, ("s0 p", "p k0"),
    ),
    "shipped route": Topology(
        {"p": (_shipped("where", expression="id > `2`", **{"else": "low"}), _shipped("route", cases=[MIDDLE]))},
        ("s0 p", "p.low k0", "p.middle k1", "p k0"),
        lambda number: {"k1"} if 2 < number < 12 else {"k0"},
    ),
    "shipped route to all": Topology(
        {"p": (_shipped("route", cases=[MIDDLE, HIGH, TOP], all=True),), "q": (Hop,)},
        ("s0 p", "p.middle k0", "p.high q", "p k2", "q k1"),
        lambda number: {
            name for name, there in (("k0", number < 12), ("k1", number > 5), ("k2", number > 14)) if there
        },
    ),
    "hop and batch": Topology({"p": (Hop, lambda: Batch(3, 0.2), Unbatch)}, ("s0 p", "p k0")),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    seed: int
    topology: str = "1:1"
    acts: tuple[str, ...] = ("ok",)  # of k0, k1, ...; the last one goes on
    control: str = "none"
    events: int = 20  # of each source
    pull: int = 4  # events a pull
    queue: int = 2
    max_unsettled: int = 8
    owns_policy: bool = False
    flaky_settle: bool = False
    patient: bool = False  # the source waits for more until all is acknowledged
    beside: bool = False  # a sink that is not authoritative hangs beside


def case(seed: int) -> Case:
    """The case of a seed: all topologies, acts and controls come in turn, the rest by chance."""
    chance = random.Random(seed)
    topologies = list(TOPOLOGIES)
    return Case(
        seed,
        topologies[seed % len(topologies)],
        tuple(chance.choice(ACTS) if chance.random() < 0.7 else "ok" for _ in range(5)),
        CONTROLS[seed // len(topologies) % len(CONTROLS)],
        events=chance.choice((1, 5, 20, 30)),
        pull=chance.choice((1, 1, 4, 50)),
        queue=chance.choice((1, 1, 2, 128)),
        max_unsettled=chance.choice((1, 3, 8, 100)),
        owns_policy=chance.random() < 0.4,
        flaky_settle=chance.random() < 0.2,
        patient=chance.random() < 0.5,
        beside=chance.random() < 0.2,
    )


def shrunk(failing: Case) -> Case:
    """A smaller case that fails as well."""
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("control", ("none",)), ("beside", (False,)), ("flaky_settle", (False,)), ("owns_policy", (False,)),
        ("patient", (False,)),
        ("acts", (("ok",), *((each, "ok") for each in failing.acts))), ("events", (1, 2, 3, 5, 10)), ("pull", (1,)),
        ("queue", (128,)), ("max_unsettled", (100,)),
    )  # fmt: skip
    for name, values in choices:
        for value in values:
            changed: dict[str, Any] = {name: value}
            smaller = replace(failing, **changed)
            if smaller != failing and fails(smaller):
                failing = smaller
                break
    return failing


def fails(one: Case) -> str:
    """What is wrong, or nothing."""
    try:
        run(one)
    except Exception as error:  # noqa: BLE001 - a broken invariant, a deadlock, whatever the runtime raised
        return f"{type(error).__name__}: {error}"
    return ""


# -- the world: what outlives a flow -------------------------------------------------------------------------
@dataclass
class World:
    case: Case
    loop: VirtualLoop
    acked: Counter[int] = field(default_factory=Counter)  # by number
    dead: Counter[int] = field(default_factory=Counter)
    delivered: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # by sink
    attempts: Counter[int] = field(default_factory=Counter)  # at the server, of sources with their own policy
    running: RunningFlow | None = None
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = TOPOLOGIES[self.case.topology]
        self.shape = shape
        counts = range(self.case.events)
        self.numbers = {f"s{each}": [1000 * each + count for count in counts] for each in range(shape.sources)}

    def check(self, good: bool, text: str) -> None:
        if not good:
            self.problems.append(f"at {self.loop.time():g} s: {text}")

    def open(self, source: str) -> list[int]:
        return [each for each in self.numbers[source] if not self.acked[each]]

    def pause(self) -> float:
        return self.loop.random.choice((0.0, 0.0, 0.001, 0.05, 0.3))

    def letters(self, pairs: Sequence[tuple[Event, str]]) -> None:
        for event, _ in pairs:
            for number in ids(event.value):
                self.dead[number] += 1


class Log(Source):
    """A durable source: what is not acknowledged comes again after a restart."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.owns_policy = world.case.owns_policy
        self.due: list[int] = world.open(name)
        self.taken: set[int] = set()  # not told of
        self.news = asyncio.Event()

    async def pull(self, limit: int) -> list[Event] | None:
        world = self.world
        node = self.context.source
        assert isinstance(node, SourceNode)
        world.check(not len(node.breaker), f"a pull while {node.breaker.reasons} stand")
        room = world.case.max_unsettled - len(self.taken)
        world.check(0 < limit <= room, f"a pull of {limit} where {room} are allowed")
        pause = world.pause()
        if pause and not await self.wait(asyncio.sleep(pause)):
            return []
        if self.due:
            count = min(limit, self.loop_random(world.case.pull), len(self.due))
            numbers, self.due = self.due[:count], self.due[count:]
            self.taken.update(numbers)
            return [Event({"id": each}, None, each, attempt=1 + world.attempts[each]) for each in numbers]
        if not world.open(self.name) or not (self.owns_policy or world.case.patient):
            return None
        self.news.clear()
        await self.wait(self.news.wait())
        return []

    def give(self, number: int) -> None:
        self.due.append(number)
        self.news.set()

    def loop_random(self, most: int) -> int:
        return self.world.loop.random.randint(1, most)

    async def settled(self, tokens: Sequence[Token]) -> None:
        world = self.world
        await asyncio.sleep(world.pause())
        if world.case.flaky_settle and world.loop.random.random() < 0.3:
            raise OSError("the server is gone")
        self.news.set()
        for token in tokens:
            number = token.key
            world.check(number in self.taken, f"{number} was settled, and is not under way")
            self.taken.discard(number)
            if self.owns_policy and token.status in (REJECT, RETRY):
                world.attempts[number] += 1
                if token.status == RETRY and world.attempts[number] < 20:
                    asyncio.get_running_loop().call_later(0.1, self.give, number)
                    continue
                world.dead[number] += 1
            world.acked[number] += 1
            if not world.dead[number]:
                world.check(token.status in (OK, DISCARD), f"{number} was acknowledged although it is {token}")
                for sink in world.shape.reaches(number):
                    world.check(world.delivered[sink][number] > 0, f"{number} was acknowledged before {sink} had it")


class Watched(ScriptConnector):
    """A sink that says to the world what it got."""

    def __init__(self, options: ScriptOptions, world: World, name: str) -> None:
        super().__init__(options)
        self.world = world
        self.name = name
        self.concurrency = world.loop.random.choice((1, 1, 3))

    async def connect(self) -> None:
        await asyncio.sleep(self.world.pause())
        if self.world.loop.random.random() < 0.1:
            raise ConnectionRefusedError("not yet")

    async def write(self, events: list[Event]) -> Deferred | list[Outcome]:
        await asyncio.sleep(self.world.pause())
        return await super().write(events)

    def _deliver(self, event: Event) -> None:
        for number in ids(event.value):
            self.world.delivered[self.name][number] += 1


class Never(Watched):
    """A sink that is never connected."""

    async def connect(self) -> None:
        await asyncio.sleep(self.world.pause())
        raise ConnectionRefusedError("never")


# -- a flow of the case --------------------------------------------------------------------------------------
def spec(world: World) -> FlowSpec:
    one = world.case
    reconnect = ReconnectOptions(retry=ReconnectRetryOptions(first=Duration(0.05), most=Duration(1.0)))
    links = [*world.shape.links]
    connectors: dict[str, ConnectorSpec] = {}
    if one.beside:
        links += [f"{left} beside" for left in {each.split()[0] for each in links if "." not in each}]
    for name in {end for each in links for end in each.split()}:
        if name[0] == "s":
            options = ConnectorOptions(
                reconnect=reconnect,
                max_unsettled=one.max_unsettled,
                on_error=SourceErrorPolicy.read({"retry": {"attempts": 19, "first": 0.05}}),
            )
            connectors[name] = ConnectorSpec(name, "log", partial(Log, world, name), options, True, False)
        elif name[0] == "k" or name == "beside":
            act: Any = one.acts[min(int(name[1:]), len(one.acts) - 1)] if name != "beside" else "hangs"
            kind, _, manner = act.partition(" ")
            if kind == "http":
                options_of = peer_options(reconnect)
                make = partial(Peer, options_of, world, name, manner)
                connectors[name] = ConnectorSpec(name, "http_client", make, options_of, False, True)
                continue
            if kind == "never":  # it is never connected
                given = ScriptOptions(reconnect=reconnect)
                connectors[name] = ConnectorSpec(name, "script", partial(Never, given, world, name), given, False, True)
                continue
            given = ScriptOptions(
                act=act, reconnect=reconnect, id=world.numbers["s0"][-1], delay=Duration(0.5), seed=one.seed,
                timeout=Duration(0.3) if act in ("hangs", "late", "after_cancel") and name != "beside" else None,
                authoritative=name != "beside",
            )  # fmt: skip
            connectors[name] = ConnectorSpec(name, "script", partial(Watched, given, world, name), given, False, True)
    pipelines = {
        name: PipelineSpec(name, tuple(OperatorSpec("x", each, (), False) for each in makes))
        for name, makes in world.shape.pipelines.items()
    }
    made = []
    for each in links:
        left, right = each.split()
        name, _, port = left.partition(".")
        made.append(Edge(name, port or "out", right))
    return FlowSpec("sim", connectors, pipelines, tuple(made), queue=one.queue, debug=True, drain_timeout=60.0)


def begin(world: World) -> RunningFlow:
    declared = spec(world)

    async def letters(source: str, pairs: Sequence[tuple[Event, str]]) -> bool:
        await asyncio.sleep(world.pause())
        if world.case.flaky_settle and world.loop.random.random() < 0.3:
            raise OSError("the server is gone")
        world.letters(pairs)
        return True

    context = FlowContext(
        "sim",
        debug=True,
        queue=declared.queue,
        now_ns=world.loop.now_ns,
        random=world.loop.random,
        dead_letters=letters,
    )
    running = RunningFlow(declared, context)
    for node in running.graph.sources.values():
        _watch_source(world, node)
    world.running = running
    return running


def _watch_source(world: World, node: SourceNode) -> None:
    emit = node.emit

    def checked(events: list[Event], port: str = "out") -> None:
        reasons = {each.reason for each in node.breaker.reasons} - {f"{WINDOW_FULL}:{node.name}"}
        world.check(not reasons, f"{node.name} sends while {reasons} stand")
        world.check(node.unsettled <= world.case.max_unsettled, f"{node.unsettled} events of {node.name} are unsettled")
        emit(events, port)
        world.check(not node.held, f"{node.name} holds {node.held} events")

    node.emit = checked  # type: ignore[method-assign]


@contextlib.contextmanager
def watched(world: World) -> Iterator[None]:
    """Each message changes its own reason only; no channel has more than its capacity."""
    put, trigger, restore = EventChannel.put, Breaker.trigger, Breaker.restore

    def checked_put(self: EventChannel, item: Any) -> None:
        put(self, item)
        batches = sum(1 for each in self.items if not isinstance(each, Signal))
        world.check(batches <= self.capacity, f"{self.name} has {batches} batches")

    def changes(method: Any) -> Any:
        def call(self: Breaker, message: Any, *rest: Any) -> bool:
            before = {each.reason for each in self.reasons}
            result: bool = method(self, message, *rest)
            after = {each.reason for each in self.reasons}
            world.check(before ^ after <= {message.reason}, f"{message} made {before} into {after}")
            return result

        return call

    EventChannel.put, Breaker.trigger, Breaker.restore = checked_put, changes(trigger), changes(restore)  # type: ignore[method-assign]
    try:
        yield
    finally:
        EventChannel.put, Breaker.trigger, Breaker.restore = put, trigger, restore  # type: ignore[method-assign]


# -- control -------------------------------------------------------------------------------------------------
async def _control(world: World) -> None:
    running = world.running
    assert running is not None
    chance = world.loop.random
    kind = world.case.control
    for _ in range(chance.randint(1, 8)):
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.2, 1.0)))
        if running.status in ("failed", "drained", "stopped"):
            return
        if kind == "pause storm":
            await _pause(running, chance.choice([None, *running.graph.connectors]), chance.random() < 0.5)
        elif kind == "flapping breaker":
            node = chance.choice(running.graph.nodes)
            if node.kind != "source":
                if chance.random() < 0.5:
                    node.trigger("flap")
                else:
                    node.restore("flap", probe=chance.random() < 0.5)
        elif kind == "reconnect":
            chance.choice(list(running.graph.connections.values())).lost(ConnectionResetError("flap"))
    for name in (None, *running.graph.connectors):
        if kind == "pause storm":
            await running.resume(name)
    for node in running.graph.nodes:
        if kind == "flapping breaker" and node.kind != "source":
            node.restore("flap", probe=chance.random() < 0.5)


async def _pause(running: RunningFlow, name: str | None, pauses: bool) -> None:
    if not pauses:
        await running.resume(name)
        return
    await running.pause(name)
    owner = "api" if name is None else name
    for source in running.graph.sources.values():
        if name is None or name == source.name:
            assert f"{PAUSED}:{owner}" in source.breaker  # watched: nothing is sent while it stands


async def _story(world: World) -> None:
    one = world.case
    chance = world.loop.random
    times = 1 + (chance.randint(1, 3) if one.control in ("drain mid-batch", "redeploy") else 0)
    for turn in range(times):
        running = begin(world)
        await running.start()
        if turn < times - 1:
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.3, 1.0, 3.0)))
            if one.control == "redeploy":
                await running.stop()
            else:
                await _drain(world, running, chance.choice((0.0, 0.1, 5.0, HOUR)))
            _intact(world, running)
            continue
        control = asyncio.get_running_loop().create_task(_control(world))
        async with asyncio.timeout(100 * HOUR):
            await running.finished()
        await control
        _intact(world, running)
        unsettled = running.unsettled()
        world.check(unsettled.count == 0 and unsettled.oldest is None, f"finished with {unsettled}")
        await running.stop()


async def _drain(world: World, running: RunningFlow, seconds: float) -> None:
    report = await running.drain(seconds)
    for name, left in report.abandoned.items():
        source = running.graph.connectors[name]
        assert isinstance(source, Log)
        world.check(left == len(source.taken), f"{left} events of {name} abandoned, {len(source.taken)} are taken")
    world.check(report.seconds <= seconds + 1, f"a drain of {seconds} s took {report.seconds}")
    if report.complete:
        where = {name for name, count in running.unsettled().where.items() if count}
        world.check(where <= {"beside"}, f"drained, with {running.unsettled()}")


def _intact(world: World, running: RunningFlow) -> None:
    world.check(running.status != "failed", f"the flow failed: {running.error}")
    world.check(not running.context.lost, f"lost: {running.context.lost}")
    for node in running.graph.nodes:
        world.check(not node.counts.get("settled_twice"), f"{node.name}: settled twice")


def run(one: Case) -> World:
    """AssertionError: an invariant is broken."""
    found: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        world = World(one, loop)
        found.append(world)
        with watched(world):
            await _story(world)

    logging.disable(logging.ERROR)  # faults are meant
    try:
        simulate(main, one.seed)
    finally:
        logging.disable(logging.NOTSET)
        assert not found[0].problems, "\n".join(found[0].problems[:5])
    world = found[0]
    for numbers in world.numbers.values():
        for number in numbers:
            dead = world.dead[number]
            assert world.acked[number] == 1, f"the source heard {world.acked[number]} times of {number}"
            missing = [each for each in world.shape.reaches(number) if not world.delivered[each][number]]
            assert dead or not missing, f"{number} got neither to {missing} nor to the dead letters"
            if world.shape.dies(number):
                assert dead, f"{number} is no dead letter"
            elif not {"one", "reject", "hangs", "late", "after_cancel", "raises", "disconnects"} & set(one.acts):
                assert not dead, f"{number} is a dead letter"
    return world
