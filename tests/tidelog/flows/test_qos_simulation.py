"""Operators of quality of service in the simulation: its invariants, and each event somewhere."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.tidelog.flows import simulation
from tests.tidelog.flows.simoperators import Batch, Unbatch
from tests.tidelog.flows.simulation import Case, Topology, case, run
from tidelog.flows.api.operator import Operator
from tidelog.flows.operators.backpressure import BackpressureOperator, BackpressureOptions
from tidelog.flows.operators.fallback import FallbackOperator, FallbackOptions
from tidelog.flows.operators.percentile import PercentileOperator, PercentileOptions
from tidelog.flows.operators.ratelimit import RateLimitOperator, RateLimitOptions
from tidelog.flows.operators.retry import RetryOperator, RetryOperatorOptions
from tidelog.flows.operators.roundrobin import RoundrobinOperator, RoundrobinOptions
from tidelog.options.units import Duration, PositiveDuration

PARTS = 4  # so that several processes share the work


def pause() -> Operator:
    steps = (PositiveDuration(0.05), PositiveDuration(0.2), PositiveDuration(1.0))
    return BackpressureOperator(BackpressureOptions(timeout=PositiveDuration(0.2), steps=steps))


def discard() -> Operator:
    steps = (PositiveDuration(0.05), PositiveDuration(0.2), PositiveDuration(1.0))
    return BackpressureOperator(BackpressureOptions(timeout=PositiveDuration(0.2), steps=steps, method="discard"))


def again() -> Operator:
    return RetryOperator(RetryOperatorOptions(attempts=2, first=Duration(0.05), max_copies=5))


def robin() -> Operator:
    return RoundrobinOperator(RoundrobinOptions(outputs=["a", "b"], probe_after=PositiveDuration(0.2), most=3))


def limit() -> Operator:
    return RateLimitOperator(RateLimitOptions(rate=20, burst=2))


def three() -> Operator:
    return Batch(3, 0.2)


def anywhere(_: int) -> set[str]:
    return set()  # what it has to reach is looked at here


SHAPES = {
    "backpressure": Topology({"p": (pause,)}, ("s0 p", "p k0")),
    "backpressure, batch, backpressure": Topology({"p": (pause, three, pause)}, ("s0 p", "p k0")),
    "two backpressures side by side": Topology(
        {"p": (pause,), "q": (pause,)}, ("s0 p", "s0 q", "p k0", "q k1"), lambda _: {"k0", "k1"}
    ),
    "retry": Topology({"p": (again,)}, ("s0 p", "p k0")),
    "retry of a batch": Topology({"p": (three, again, Unbatch)}, ("s0 p", "p k0")),
    "retry over a fan-out": Topology({"p": (again,)}, ("s0 p", "p k0", "p k1"), lambda _: {"k0", "k1"}),
    "ratelimit": Topology({"p": (limit,)}, ("s0 p", "p k0")),
    "roundrobin": Topology({"p": (robin,)}, ("s0 p", "p.a k0", "p.b k1"), anywhere),
    "roundrobin of two sources": Topology({"p": (robin,)}, ("s0 p", "s1 p", "p.a k0", "p.b k1"), anywhere, 2),
    "roundrobin of batches": Topology({"p": (three, robin)}, ("s0 p", "p.a k0", "p.b k1"), anywhere),
    "roundrobin over backpressures": Topology(
        {"p": (again, robin), "q": (pause,), "r": (pause,)}, ("s0 p", "p.a q", "p.b r", "q k0", "r k1"), anywhere
    ),
    "fallback": Topology(
        {"p": (lambda: FallbackOperator(FallbackOptions(max_copies=5)),)}, ("s0 p", "p k0", "p.fallback k1"), anywhere
    ),
    "fallback that waits": Topology(
        {"p": (three, lambda: FallbackOperator(FallbackOptions(outage="wait")))},
        ("s0 p", "p k0", "p.fallback k1"),
        anywhere,
    ),
    "discard": Topology({"p": (discard,)}, ("s0 p", "p k0", "p.overflow k1"), anywhere),
    "percentile": Topology(
        {"p": (lambda: PercentileOperator(PercentileOptions(timeout=PositiveDuration(0.2), step_down=0.3)),)},
        ("s0 p", "p k0", "p.overflow k1"), anywhere,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in SHAPES.items():
        monkeypatch.setitem(simulation.TOPOLOGIES, name, shape)


def of(seed: int) -> Case:
    names = list(SHAPES)
    control = simulation.CONTROLS[seed // len(names) % len(simulation.CONTROLS)]
    return replace(case(seed), topology=names[seed % len(names)], control=control, beside=False)


def seeds() -> range:
    first, _, last = os.environ.get("TIDELOG_SEEDS", "180").rpartition(":")
    return range(int(first or 0), int(last))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(3600)
def test_invariants_hold_whatever_happens(part: int) -> None:
    for seed in seeds()[part::PARTS]:
        try:
            world = run(of(seed))
            for number in (each for numbers in world.numbers.values() for each in numbers):
                arrived = sum(each[number] for each in world.delivered.values())
                assert arrived or world.dead[number], f"{number} never arrived"
        except BaseException as error:
            error.add_note(f"seed {seed}: {of(seed)}")
            raise
