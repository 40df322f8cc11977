"""The checker sees what is wrong, and the files what a power failure leaves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from persistence.wal import BLOCK, Wal, create
from tests.simulation.checker import Ledger
from tests.simulation.disk import Disk, simulated
from tests.simulation.network import NetworkLoop

pytestmark = [pytest.mark.quick, pytest.mark.interpreted]


def row(entry_id: bytes, value: bytes) -> list[bytes]:
    return [entry_id, b"v", value]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(lossless=True)
    ledger.sent = {("a", b"1"), ("a", b"2"), ("a", b"3")}
    ledger.said = {("a", b"1"), ("a", b"2")}
    return ledger


def test_what_is_right(ledger: Ledger) -> None:
    rows = [row(b"5.0", b"1"), row(b"5.1", b"2"), row(b"12.0", b"3")]
    ledger.check_read("a", rows, ledger.expected("a"))
    ledger.check_end({"a": rows})
    assert ledger.expected("a") == {b"1", b"2", b"3"}  # the reader has seen the third one


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(b"5.0", b"1")], "entries are gone"),
        ([row(b"6.0", b"1"), row(b"5.0", b"2")], "not in order"),
        ([row(b"5.0", b"1"), row(b"5.0", b"2")], "not in order"),
        ([row(b"5.0", b"1"), row(b"6.0", b"2"), row(b"7.0", b"1")], "twice"),
        ([row(b"5.0", b"1"), row(b"6.0", b"2"), row(b"7.0", b"4")], "nobody has sent"),
    ],
)
def test_what_is_wrong(ledger: Ledger, rows: list[list[bytes]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ledger.check_read("a", rows, ledger.expected("a"))
    with pytest.raises(AssertionError, match=message.replace("entries are", "confirmed entries are")):
        ledger.check_end({"a": rows})


def test_what_a_reader_has_seen_may_not_disappear(ledger: Ledger) -> None:
    ledger.check_read("a", [row(b"5.0", b"1"), row(b"6.0", b"2"), row(b"7.0", b"3")], set())
    with pytest.raises(AssertionError, match="1 entries are gone"):
        ledger.check_read("a", [row(b"5.0", b"1"), row(b"6.0", b"2")], ledger.expected("a"))


def test_a_deleted_entry_may_be_gone_and_may_not_come_back(ledger: Ledger) -> None:
    ledger.removed = ledger.deleted = {("a", b"1")}
    ledger.check_end({"a": [row(b"6.0", b"2")]})
    with pytest.raises(AssertionError, match="are back"):
        ledger.check_end({"a": [row(b"5.0", b"1"), row(b"6.0", b"2")]})


def test_only_promises_hold_if_the_leader_may_change(ledger: Ledger) -> None:
    ledger.lossless = False
    ledger.promised = {("a", b"2")}
    ledger.check_end({"a": [row(b"6.0", b"2")]})
    with pytest.raises(AssertionError, match="1 of 1 confirmed entries are gone"):
        ledger.check_end({"a": [row(b"6.0", b"1")]})


@pytest.mark.parametrize("power", [False, True])
def test_a_power_failure_keeps_what_was_synced_and_some_of_the_rest(tmp_path: Path, power: bool) -> None:
    loop = NetworkLoop()
    process = loop.process("m1", "10.0.0.1")
    disk = Disk(tmp_path, "m1", random.Random(1))
    disk.path.mkdir()
    found: list[int] = []

    def work() -> None:
        create(disk.path / "tail", 1 << 20)
        wal = Wal(disk.path / "tail")
        batch, at = b"x" * 100, 0
        for number in range(40):
            wal.write(number * BLOCK, at, 0, batch)
            at += len(batch)
            if number == 19:
                wal.sync()
        wal.close()
        disk.after_kill(power)
        wal = Wal(disk.path / "tail")
        frames, _ = wal.read(0)
        found.append(len(frames))
        wal.close()

    with simulated(loop, lambda each: disk if each is process else None):
        process.context.run(work)
    loop.close()
    assert found[0] == 40 if not power else 20 <= found[0] < 40
