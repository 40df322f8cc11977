"""The scrub of a running server: its rate by a clock that is moved by hand, its fields in INFO, and errors of reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.scrub import DAY_MS, LONGEST_MS, Scrub
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.persistence.test_scrub import damage_node, noise
from tests.waiting import eventually
from tests.wire.rawclient import Raw

RATE = 100_000  # bytes per second


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with start_in_thread(
        tmp_path / "data", HandClock(), scrub_rate=str(RATE), save="", stream_node_max_entries="10", node_cache_size="0"
    ) as running:
        with Raw(running.port) as c:
            for number in range(200):
                c("TAPPEND", "s", "body", noise(number))
            c("TAPPEND", "other", "f", "v")
            assert c("SAVE") == b"OK"
        yield running


def scrub_of(server: RunningServer) -> Scrub:
    return server.server.data.disk.scrub


def info(c: Raw) -> dict[str, str]:
    text = c("INFO", "everything").decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def spend(server: RunningServer, ms: int) -> None:
    """Move the clock by a quarter second at most, and let each step end."""
    while ms > 0:
        server.advance(min(ms, 250))
        ms -= 250
        eventually(lambda: server.call(lambda: server.server.scrubbing._task is None))


def run_pass(server: RunningServer) -> None:
    scrub, before = scrub_of(server), scrub_of(server).passes
    server.call(lambda: scrub.begin(server.server.clock.now()))
    for _ in range(100):
        spend(server, 1000)
        if scrub.passes > before:
            return
    raise AssertionError("the pass has no end")


def test_the_rate_is_not_exceeded(server: RunningServer) -> None:
    scrub = scrub_of(server)
    server.call(lambda: scrub.begin(server.server.clock.now()))
    for second in range(1, 5):
        spend(server, 1000)
        assert scrub.running
        assert scrub.read <= second * RATE + RATE + 40_000  # what was saved up, and a node
        assert scrub.read >= (second - 1) * RATE - 40_000


def test_a_rate_of_zero_stops_the_scrub(server: RunningServer) -> None:
    scrub = scrub_of(server)
    server.call(lambda: scrub.begin(server.server.clock.now()))
    spend(server, 1000)
    with Raw(server.port) as c:
        assert c("CONFIG", "SET", "scrub-rate", "0") == b"OK"
        spend(server, 1000)  # the credit is gone
        read = scrub.read
        spend(server, 2000)
        assert scrub.read == read
        assert info(c)["scrub_rate"] == "0"


def test_the_rate_of_a_large_store_is_raised(server: RunningServer) -> None:
    scrub = scrub_of(server)
    scrub.cost = LONGEST_MS // 1000 * RATE * 3
    assert server.call(server.server.scrubbing.rate) == 3 * RATE


def test_a_pass_begins_daily(server: RunningServer) -> None:
    scrub = scrub_of(server)
    run_pass(server)
    spend(server, 1000)
    assert not scrub.running
    scrub.began -= DAY_MS
    server.advance(250)
    assert scrub.running


def test_damage_is_in_info_and_in_the_log_and_reads_name_it(server: RunningServer) -> None:
    with Raw(server.port) as c:
        run_pass(server)
        fields = info(c)
        assert (fields["scrub_running"], fields["scrub_passes"], fields["scrub_damaged"]) == ("0", "1", "0")
        assert int(fields["scrub_last_end_time"]) > 0
        ids = [row[0] for row in c("TRANGE", "s", "-", "+")]
        damage_node(Path(server.server.config.dir))
        run_pass(server)
        assert info(c)["scrub_damaged"] == "1"
        found = c("TRANGE", "s", ids[50], ids[51])
        where = f"stream 1 (key 's'), entries 50 to 59 (IDs from {ids[50].decode()})"
        assert found.startswith(f"ERR damaged data: the store is damaged at {where}")
        assert len(c("TRANGE", "s", ids[40], ids[48])) == 9
        assert len(c("TRANGE", "other", "-", "+")) == 1
        assert c("TAPPEND", "s", "body", "more")
        damage_node(Path(server.server.config.dir))  # flips the bit back
        assert c("SAVE") == b"OK"
        spend(server, 500)
        fields = info(c)
        assert (fields["scrub_damaged"], fields["scrub_repaired"]) == ("0", "1")


def test_a_read_that_meets_damage_reports_it(server: RunningServer) -> None:
    with Raw(server.port) as c:
        for count, number in enumerate((75, 55), start=1):
            damage_node(Path(server.server.config.dir), number)
            where = number // 10 * 10
            assert f"entries {where} to {where + 9}" in c("TRANGE", "s", "-", "+", "COUNT", str(where + 10))
            assert info(c)["scrub_damaged"] == str(count)
            spend(server, 250)
            saved = json.loads((Path(server.server.config.dir) / "scrub").read_text())  # for the next start
            assert [key for _, key, *_ in saved["damage"]] == [damage.key.hex() for damage in scrub_of(server).damage]


def test_a_replica_with_damage_has_priority_zero(server: RunningServer) -> None:
    with Raw(server.port) as c:
        assert c("REPLICAOF", "127.0.0.1", "1") == b"OK"
        assert info(c)["slave_priority"] == "100"
        damage_node(Path(server.server.config.dir))
        run_pass(server)
        assert info(c)["slave_priority"] == "0"
        assert c("REPLICAOF", "NO", "ONE").startswith("ERR the store of this server is damaged")
        assert c("REPLICAOF", "NO", "ONE", "FORCE") == b"OK"
