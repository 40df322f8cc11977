"""Outputs that break for good, in the simulation: nothing is stranded there, and what was not tried is not given up."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tests.tidelog.flows import simulation
from tests.tidelog.flows.simoperators import Batch, Unbatch
from tests.tidelog.flows.simulation import Case, Topology, case, run
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.backpressure import BackpressureOperator, BackpressureOptions
from tidelog.flows.operators.delay import DelayOperator, DelayOptions
from tidelog.flows.operators.fallback import FallbackOperator, FallbackOptions
from tidelog.flows.operators.passthrough import PassthroughOperator
from tidelog.flows.operators.ratelimit import RateLimitOperator, RateLimitOptions
from tidelog.flows.operators.retry import RetryOperator, RetryOperatorOptions
from tidelog.flows.operators.roundrobin import RoundrobinOperator, RoundrobinOptions
from tidelog.options.units import Duration, PositiveDuration

PARTS = 4  # so that several processes share the work
SOON = 300.0  # s of the virtual clock: a flow with an output that works is done by then
BROKEN = ("retry", "never", "disconnects", "http 501", "http closed", "http refuses", "http hangs", "http sometimes")
WORKS = ("ok", "slow", "http ok")
CONTROLS = ("none", "none", "reconnect", "drain mid-batch", "redeploy", "flapping breaker")


def robin() -> Operator:
    return RoundrobinOperator(RoundrobinOptions(outputs=["a", "b"], probe_after=PositiveDuration(0.2)))


def again() -> Operator:
    return RetryOperator(RetryOperatorOptions(attempts=3, first=Duration(1.0)))


def fallback() -> Operator:
    return FallbackOperator(FallbackOptions())


def late() -> Operator:
    return DelayOperator(DelayOptions(time=Duration(0.5)))


def pause() -> Operator:
    steps = (PositiveDuration(0.05), PositiveDuration(0.5))
    return BackpressureOperator(BackpressureOptions(timeout=PositiveDuration(1.0), steps=steps))


def limit() -> Operator:
    return RateLimitOperator(RateLimitOptions(rate=20, burst=2))


def large() -> Operator:
    return Batch(1000, 5.0)


def three() -> Operator:
    return Batch(3, 0.2)


def anywhere(_: int) -> set[str]:
    return set()


TO_A = ("s0 p", "p.a k0", "p.b k1")


def behind(*line: object) -> Topology:
    """Operators between one output and its sink, which breaks."""
    return Topology({"p": (robin,), "q": line}, ("s0 p", "p.a q", "q k0", "p.b k1"), anywhere)  # type: ignore[dict-item]


SHAPES = {
    "roundrobin": Topology({"p": (robin,)}, TO_A, anywhere),
    "roundrobin of two sources": Topology({"p": (robin,)}, ("s1 p", *TO_A), anywhere, 2),
    "roundrobin of batches": Topology({"p": (three, robin)}, TO_A, anywhere),
    "roundrobin after retry": Topology({"p": (again, robin)}, TO_A, anywhere),
    "through a pipeline": behind(PassthroughOperator, PassthroughOperator),
    "retry behind": behind(again),
    "batch behind": behind(three),
    "batch and unbatch behind": behind(three, Unbatch),
    "large batch behind": behind(large),
    "delay behind": behind(late, PassthroughOperator),
    "backpressure behind": behind(pause),
    "ratelimit behind": behind(limit, again),
    "retry of batches behind": behind(three, again),
    "fan-out behind": Topology({"p": (robin,)}, ("s0 p", "p.a k0", "p.a k2", "p.b k1"), anywhere),
    "roundrobin behind": Topology(
        {"p": (robin,), "q": (robin,)}, ("s0 p", "p.a q", "q.a k0", "q.b k0", "p.b k1"), anywhere
    ),
    "roundrobin behind, with a way out": Topology(
        {"p": (robin,), "q": (robin,)}, ("s0 p", "p.a q", "q.a k0", "q.b k2", "p.b k1"), anywhere
    ),
    "fallback": Topology({"p": (fallback,)}, ("s0 p", "p k0", "p.fallback k1"), anywhere),
    "fallback of batches": Topology({"p": (three, fallback)}, ("s0 p", "p k0", "p.fallback k1"), anywhere),
    "fallback, retry behind": Topology(
        {"p": (fallback,), "q": (again,)}, ("s0 p", "p q", "q k0", "p.fallback k1"), anywhere
    ),
    "fallback, batch behind": Topology(
        {"p": (fallback,), "q": (three,)}, ("s0 p", "p q", "q k0", "p.fallback k1"), anywhere
    ),
    "fallback behind roundrobin": Topology(
        {"p": (robin,), "q": (fallback,)}, ("s0 p", "p.a q", "q k0", "q.fallback k0", "p.b k1"), anywhere
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in SHAPES.items():
        monkeypatch.setitem(simulation.TOPOLOGIES, name, shape)


def of(seed: int) -> Case:
    """k0 breaks, all others work."""
    names = list(SHAPES)
    chance = random.Random(seed)
    return replace(
        case(seed), topology=names[seed % len(names)], control=chance.choice(CONTROLS), beside=False,
        acts=(chance.choice(BROKEN), chance.choice(WORKS), "ok"), owns_policy=False,
        max_unsettled=chance.choice((8, 20, 100)),
    )  # fmt: skip


def seeds() -> range:
    first, _, last = os.environ.get("TIDELOG_SEEDS", "252").rpartition(":")
    return range(int(first or 0), int(last))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(3600)
def test_nothing_is_stranded_at_an_output_that_breaks(part: int) -> None:
    for seed in seeds()[part::PARTS]:
        try:
            world = run(of(seed))
            assert world.loop.time() < SOON, f"it took {world.loop.time():g} s"
            for number in (each for numbers in world.numbers.values() for each in numbers):
                assert not world.dead[number], f"{number} was given up"
                assert sum(each[number] for each in world.delivered.values()), f"{number} never arrived"
        except BaseException as error:
            error.add_note(f"seed {seed}: {of(seed)}")
            raise
