"""Gates: what each one does to the two summaries that the dispatcher reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.runtime.gates import Gates

Change = Callable[[Gates], None]

OPEN, READS_PASS, CLOSED = (False, True), (True, True), (True, False)  # closed, reads_pass

GATES: list[tuple[Change, Change, tuple[bool, bool]]] = [
    (lambda g: g.disk("MISCONF x"), lambda g: g.disk(""), READS_PASS),
    (lambda g: g.memory(True), lambda g: g.memory(False), READS_PASS),
    (lambda g: g.role(True, False), lambda g: g.role(False, False), READS_PASS),
    (lambda g: g.role(True, True), lambda g: g.role(False, False), CLOSED),
    (lambda g: g.role(True, False, no_data="MASTERDOWN x"), lambda g: g.role(False, False), CLOSED),
    (lambda g: g.load(True), lambda g: g.load(False), CLOSED),
    (lambda g: g.replicas(True), lambda g: g.replicas(False), READS_PASS),
    (lambda g: g.hold(True), lambda g: g.hold(False), CLOSED),
    (lambda g: g.pause(True, False), lambda g: g.pause(False, False), CLOSED),
    (lambda g: g.pause(True, True), lambda g: g.pause(False, False), CLOSED),
    (lambda g: g.monitors(True), lambda g: g.monitors(False), CLOSED),
]
NAMES = [
    "disk", "memory", "replica", "stale", "no-data", "loading", "too-few", "held", "pause", "pause-writes", "monitored",
]  # fmt: skip


def state(gates: Gates) -> tuple[bool, bool]:
    return gates.closed, gates.reads_pass


def test_a_new_server_has_all_gates_open() -> None:
    assert state(Gates()) == OPEN


@pytest.mark.parametrize(("close", "reopen", "expected"), GATES, ids=NAMES)
def test_each_gate_alone(close: Change, reopen: Change, expected: tuple[bool, bool]) -> None:
    gates = Gates()
    close(gates)
    assert state(gates) == expected
    reopen(gates)
    assert state(gates) == OPEN


SAME = [
    {NAMES.index(one), NAMES.index(other)}
    for one, other in (
        ("replica", "stale"), ("replica", "no-data"), ("stale", "no-data"), ("pause", "pause-writes"),
    )
]  # fmt: skip


def test_a_gate_that_opens_leaves_the_others_as_they_are() -> None:
    for number, (close, reopen, alone) in enumerate(GATES):
        for second, (close_other, reopen_other, other_alone) in enumerate(GATES):
            if second == number or {number, second} in SAME:  # two states of one gate
                continue
            gates = Gates()
            close(gates)
            close_other(gates)
            names = NAMES[number], NAMES[second]
            assert state(gates) == (True, alone[1] and other_alone[1]), names
            reopen(gates)
            assert state(gates) == other_alone, names
            reopen_other(gates)
            assert state(gates) == OPEN, names


def test_each_gate_keeps_what_the_dispatcher_asks_for() -> None:
    gates = Gates()
    gates.disk("MISCONF x")
    gates.memory(True)
    gates.role(True, True)
    gates.load(True)
    gates.replicas(True)
    gates.hold(True)
    gates.pause(True, True)
    gates.monitors(True)
    assert (gates.unwritable, gates.out_of_memory, gates.readonly, gates.stale) == ("MISCONF x", True, True, True)
    assert (gates.loading, gates.too_few, gates.held, gates.monitored) == (True, True, True, True)
    assert (gates.paused, gates.pause_writes_only) == (True, True)
