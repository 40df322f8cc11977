"""``/metrics`` over HTTP: the values, the selection of streams, and the directives."""

from __future__ import annotations

import gc
import socket
import time
import urllib.error
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from respserver.config.conffile import ConfigError
from respserver.metrics import keyvalues, selection
from respserver.metrics.families import FAMILIES
from respserver.metrics.values import Samples
from respserver.program import GENERATIONS
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.respserver.metrics.scraping import Scrape, answer, scrape
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import free_port, running_server

NOW = 1_700_000_000_000  # ms; the clock of the servers below
AT = NOW // 1000


class Exporting:
    """A server on a hand-moved clock with metrics, and a connection to it."""

    def __init__(self, running: RunningServer, port: int) -> None:
        self.running = running
        self.port = port
        self.c = Raw(running.port)


@pytest.fixture
def exporting() -> Iterator[Exporting]:
    port = free_port()
    with start_in_thread(clock=HandClock(NOW), metrics_port=str(port), latency_tracking="yes") as running:
        found = Exporting(running, port)
        yield found
        found.c.close()


# -- values ------------------------------------------------------------------------------------------------------
def test_a_stream_and_its_groups(exporting: Exporting) -> None:
    c = exporting.c
    for seconds in (100, 60, 30, 10):
        c("XADD", "s", f"{NOW - 1000 * seconds}-0", "f", "v" * 50)
    c("XGROUP", "CREATE", "s", "x", "0")
    c("XREADGROUP", "GROUP", "x", "alice", "COUNT", 2, "STREAMS", "s", ">")
    c("TREAD", "s", "0", 1, "GROUP", "t", 3_600_000, "RETRY", 1000, 600_000, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    found = scrape(exporting.port)
    assert found("stream_entries", stream="s") == 4
    assert found("stream_entries_added_total", stream="s") == 4
    assert found("stream_bytes", stream="s") > 200
    assert found("stream_memory_bytes", stream="s") > 200
    assert found("stream_groups", stream="s") == 2
    assert found("stream_first_entry_timestamp_seconds", stream="s") == AT - 100
    assert found("stream_last_entry_timestamp_seconds", stream="s") == AT - 10
    assert found("group_lag_entries", stream="s", group="x") == 2
    assert found("group_lag_seconds", stream="s", group="x") == 30
    assert found("group_pending_messages", stream="s", group="x") == 2
    assert found("group_oldest_pending_seconds", stream="s", group="x") == 100
    assert found("group_consumers", stream="s", group="x") == 1
    assert found("group_lag_entries", stream="s", group="t") == 3
    assert found("group_lag_seconds", stream="s", group="t") == 60

    c("XACK", "s", "x", f"{NOW - 100_000}-0")
    c("XREADGROUP", "GROUP", "x", "alice", "STREAMS", "s", ">")
    exporting.running.advance(2000)  # the only delivery of the message of "t" is due again, and becomes a dead letter
    c("TREAD", "s", "0", 1, "GROUP", "t", 3_600_000, "RETRY", 1000, 600_000)
    exporting.running.advance(2000)
    c("TREAD", "s", "0", 1, "GROUP", "t", 3_600_000, "RETRY", 1000, 600_000)
    found = scrape(exporting.port)
    assert found("group_lag_entries", stream="s", group="x") == 0
    assert found("group_lag_seconds", stream="s", group="x") == 0
    assert found("group_oldest_pending_seconds", stream="s", group="x") == 64
    assert found("group_dead_letters_total", stream="s", group="t") == 1
    assert found("group_expired_total", stream="s", group="t") == 1
    assert found("group_redelivered_total", stream="s", group="t") == 1
    assert found("stream_entries", stream="dead") == 1
    assert (found("streams"), found("entries"), found("groups")) == (2, 5, 2)
    assert found("pending_messages") == 4
    assert found("messages_dead_lettered") == 1


def test_deleted_entries_are_no_lag(exporting: Exporting) -> None:
    c = exporting.c
    for seconds in (50, 40, 30, 20):
        c("XADD", "s", f"{NOW - 1000 * seconds}-0", "f", "v")
    c("XGROUP", "CREATE", "s", "g", "0")
    c("XDEL", "s", f"{NOW - 50_000}-0", f"{NOW - 30_000}-0")
    found = scrape(exporting.port)
    assert found("group_lag_entries", stream="s", group="g") == 2
    assert found("group_lag_seconds", stream="s", group="g") == 40
    assert found("stream_first_entry_timestamp_seconds", stream="s") == AT - 40
    c("XADD", "s", f"{NOW + 5000}-0", "f", "v")  # in the future
    c("XGROUP", "SETID", "s", "g", f"{NOW - 20_000}-0")
    assert scrape(exporting.port)("group_lag_seconds", stream="s", group="g") == 0
    c("XTRIM", "s", "MAXLEN", 0)
    found = scrape(exporting.port)
    assert found("group_lag_entries", stream="s", group="g") == 0
    assert found.labels("stream_last_entry_timestamp_seconds", "stream") == {"s"}
    assert found.labels("stream_first_entry_timestamp_seconds", "stream") == set()


def test_commands_errors_and_latencies(exporting: Exporting) -> None:
    c = exporting.c
    c("CONFIG", "RESETSTAT")  # the servers of a process share the counts of commands
    for _ in range(3):
        c("SET", "k", "v")
    c("XADD", "k", "*", "f", "v")
    c("NOPE")
    found = scrape(exporting.port)
    assert found("command_calls_total", command="set") == 3
    assert found("command_failed_total", command="xadd") == 1
    assert found("command_seconds_total", command="set") > 0
    assert found("errors_total", code="WRONGTYPE") == 1
    assert found("errors_total", code="ERR") == 1
    assert found("error_replies_total") == 2
    assert found("keys") == 1
    assert found.types["tidelog_command_duration_seconds"] == "histogram"
    assert found("command_duration_seconds_count", command="set") == 3
    assert found("command_duration_seconds_bucket", command="set", le="+Inf") == 3
    assert 0 < found("command_duration_seconds_sum", command="set") < 10
    c("CONFIG", "SET", "latency-tracking", "no")
    assert "tidelog_command_duration_seconds" not in scrape(exporting.port).types
    assert found("server_info", version="0.1.0", redis_version="8.4.0", mode="standalone", role="leader",
                 compiled=str(int(_compiled())), appendfsync="always") == 1  # fmt: skip


def _compiled() -> bool:
    from respserver.observe.info import COMPILED

    return COMPILED


def test_names_of_any_bytes(exporting: Exporting) -> None:
    c = exporting.c
    names = [
        b'quote"d',
        b"back\\slash",
        b"two\nlines",
        "ünï".encode(),
        b"\xff\xfe",
        b"\\xff\\xfe",
        b"k" * 5000,
        b"k" * 5001,
    ]
    for name in names:
        c("XADD", name, "1-1", "f", "v")
        assert c("XGROUP", "CREATE", name, name[:100], "0") == b"OK"
    found = scrape(exporting.port)
    labels = found.labels("group_lag_entries", "stream")
    assert len(labels) == len(names)
    assert {'quote"d', "back\\slash", "two\nlines", "ünï", "\\xff\\xfe"} < labels
    assert max(map(len, labels)) < 300


def test_an_expired_stream_is_not_exported(exporting: Exporting) -> None:
    exporting.c("XADD", "s", "*", "f", "v")
    exporting.c("PEXPIRE", "s", 1000)
    assert scrape(exporting.port).labels("stream_entries", "stream") == {"s"}
    exporting.running.call(lambda: exporting.running.server.clock.set(2000))  # type: ignore[attr-defined]
    assert scrape(exporting.port).labels("stream_entries", "stream") == set()


# -- the selection -------------------------------------------------------------------------------------------------
def test_the_largest_streams(exporting: Exporting) -> None:
    c = exporting.c
    for number in range(20):
        c("XADD", f"s:{number}", "*", "f", "v" * 100 * number)
    c("CONFIG", "SET", "metrics-keys", 3)
    found = scrape(exporting.port)
    assert found.labels("stream_entries", "stream") == {"s:19", "s:18", "s:17"}
    assert (found("metrics_streams_matching"), found("metrics_streams_exported")) == (20, 3)
    assert found("entries") == 20
    c("CONFIG", "SET", "metrics-key-pattern", "s:[0-8]")
    found = scrape(exporting.port)
    assert found.labels("stream_entries", "stream") == {"s:8", "s:7", "s:6"}
    assert found("metrics_streams_matching") == 9
    c("CONFIG", "SET", "metrics-keys", 0, "metrics-key-pattern", "")
    found = scrape(exporting.port)
    assert found.labels("stream_entries", "stream") == set()
    assert found("streams") == 20


def test_a_stream_that_became_the_largest_is_exported(exporting: Exporting) -> None:
    c = exporting.c
    c("CONFIG", "SET", "metrics-keys", 1)
    c("XADD", "a", "*", "f", "v" * 100)
    assert scrape(exporting.port).labels("stream_entries", "stream") == {"a"}
    c("XADD", "b", "*", "f", "v" * 1000)
    assert scrape(exporting.port).labels("stream_entries", "stream") == {"b"}
    c("FLUSHALL")
    assert scrape(exporting.port).labels("stream_entries", "stream") == set()


def test_an_expensive_selection_is_reused_and_renewed(exporting: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    c = exporting.c
    monkeypatch.setattr(selection, "CHEAP", 0.0)
    monkeypatch.setattr(selection, "REUSE", 1e9)
    c("XADD", "a", "*", "f", "v")
    assert scrape(exporting.port).labels("stream_entries", "stream") == {"a"}
    c("XADD", "b", "*", "f", "v")
    c("XADD", "a", "*", "f", "v")
    found = scrape(exporting.port)
    assert found.labels("stream_entries", "stream") == {"a"}
    assert found("stream_entries", stream="a") == 2  # the values are always current
    assert found("metrics_selection_age_seconds") > 0
    c("CONFIG", "SET", "metrics-key-pattern", "b")
    assert scrape(exporting.port).labels("stream_entries", "stream") == {"b"}
    c("CONFIG", "SET", "metrics-key-pattern", "[ab]")
    c("XADD", "a2", "*", "f", "v")
    assert scrape(exporting.port)("metrics_streams_matching") == 2
    c("DEL", "b")
    monkeypatch.setattr(selection, "REUSE", 0.0)
    scrape(exporting.port)  # begins to renew the selection after this text
    eventually(lambda: scrape(exporting.port)("metrics_streams_matching") == 1)


def test_groups_beyond_the_limit_are_counted(exporting: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalues, "MOST_GROUPS", 5)
    for number in range(8):
        exporting.c("XGROUP", "CREATE", "s", f"g{number}", "0", "MKSTREAM")
    found = scrape(exporting.port)
    assert len(found.labels("group_lag_entries", "group")) == 5
    assert found("metrics_groups_omitted") == 3
    assert found("groups") == 8


def test_many_groups_and_keys_change_between_the_slices(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Keys and groups are deleted while a snapshot is taken in slices of one step."""
    monkeypatch.setattr("respserver.metrics.slices.SLICE", 0.0)
    monkeypatch.setattr(selection, "GROUPS", 3)
    c, number = exporting.c, 0
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        number += 1
        for key in "abc":
            for group in range(10):
                c("XGROUP", "CREATE", key, f"g{group}", "0", "MKSTREAM")
        with socket.create_connection(("127.0.0.1", exporting.port), timeout=10) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            c("XGROUP", "DESTROY", "a", "g3")
            c("DEL", "b")
            c("FLUSHALL" if number % 2 else "PING")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_keys_and_groups_are_deleted_between_two_steps(exporting: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "GROUPS", 3)
    monkeypatch.setattr(selection, "PAGE", 2)
    c, ks = exporting.c, exporting.running.server.data.ks
    for key in "abcd":
        for number in range(7):
            c("XGROUP", "CREATE", key, f"g{number}", "0", "MKSTREAM")
    result = selection.StreamSelection()
    steps = selection.walk(ks, 10, b"", result)
    seen = [0]
    while exporting.running.call(lambda: next(steps, steps)) is None:
        seen.append(result.totals.groups)
        c("DEL", "a")  # one of the last page
        c("XGROUP", "DESTROY", "c", "g5")
    assert max(after - before for before, after in pairwise(seen)) < 2 * selection.GROUPS
    assert result.keys == [b"d", b"c", b"b"]

    samples: Samples = defaultdict(list)
    found = keyvalues.collect(ks, [b"a", b"b", b"c"], NOW, samples)
    assert exporting.running.call(lambda: [next(found), next(found)]) == [keyvalues.STREAM, keyvalues.GROUP]
    c("XGROUP", "DESTROY", "b", "g2")
    c("DEL", "c")
    assert exporting.running.call(lambda: list(found)) == [keyvalues.GROUP] * 5
    assert [labels for labels, _ in samples["stream_entries"]] == [(b"b",)]


@pytest.fixture
def _gc_of_the_program() -> Iterator[None]:
    """Without it, a slice can contain a collection of all objects of the tests."""
    before = gc.get_threshold()
    gc.set_threshold(*GENERATIONS)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_gc_of_the_program")
def test_no_slice_is_long(exporting: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure for 100,000 streams is below 1 ms. The limit leaves room for a slow machine; without slices, this text
    takes more than 20 ms."""
    monkeypatch.setattr("respserver.metrics.slices.perf_counter", time.thread_time)  # not disturbed by other programs
    c = exporting.c
    c.pipeline(*[("XADD", f"s:{number}", "*", "f", "v") for number in range(2000)])
    c.pipeline(*[("XGROUP", "CREATE", "s:0", f"g{number}", "0") for number in range(2000)])
    c("CONFIG", "SET", "metrics-keys", 2000)
    found = scrape(exporting.port)
    assert found("metrics_streams_exported") == 2000
    assert len(found.labels("group_lag_entries", "group")) == 2000
    assert found("metrics_snapshot_seconds") > 0.01
    assert found("metrics_longest_step_seconds") < 0.01


# -- replicas and server groups --------------------------------------------------------------------------------------
SOMETIMES = {
    "full_copy_size_bytes", "full_copy_read_bytes", "full_copy_left_bytes", "full_copy_last_io_seconds",
    "leader_link_down_seconds", "checkpoint_current_duration_seconds", "scrub_last_end_timestamp_seconds",
}  # fmt: skip


def exported(found: Scrape) -> set[str]:
    return {name for name, family in FAMILIES.items() if family.name in found.types or family.name[:-6] in found.types}


def test_a_replica_exports_its_own_data() -> None:
    ports = free_port(), free_port()
    options: dict[str, Any] = {"replica_acks": 1, "min_replicas_to_write": 1, "latency_tracking": "yes"}
    with (
        running_server(metrics_port=ports[0], **options) as leader,
        running_server(metrics_port=ports[1], replicaof=f"{leader.host} {leader.port}") as replica,
    ):
        with Raw(leader.port) as c:
            eventually(lambda: c("WAIT", 1, 100) == 1)
            c("XADD", "s", "1000-0", "f", "v")
            c("XGROUP", "CREATE", "s", "g", "0")
            c("PEXPIREAT", "s", 1 << 42)
            c("NOPE")
            c("SAVE")
            assert c("WAIT", 1, 10_000) == 1
        found = scrape(ports[1])
        assert (found("leader"), found("leader_link_up")) == (0, 1)
        assert found("group_lag_entries", stream="s", group="g") == 1
        assert found("group_lag_seconds", stream="s", group="g") == pytest.approx(time.time() - 1, abs=60)
        found = scrape(ports[0])
        name = f"127.0.0.1:{replica.port}"
        assert (found("leader"), found("connected_replicas")) == (1, 1)
        eventually(lambda: scrape(ports[0])("replica_lag_bytes", replica=name) == 0)
        both = exported(found) | exported(scrape(ports[1]))
        assert {name for name in FAMILIES if not name.startswith(("server_group", "tier"))} - both <= SOMETIMES
        assert found("replica_online", replica=name) == 1
        assert found("replica_last_ack_seconds", replica=name) < 60
        leader.kill()
        eventually(lambda: scrape(ports[1])("leader_link_up") == 0)
        assert scrape(ports[1])("group_lag_entries", stream="s", group="g") == 1
        leader.start()


def test_a_member_of_a_server_group(tmp_path: Path) -> None:
    port = free_port()
    store = f"file://{tmp_path}/store"
    with running_server(metrics_port=port, min_in_sync=1, group="tide", group_member="one", coordinator=store):
        eventually(lambda: scrape(port)("leader") == 1)
        found = scrape(port)
        assert found("server_group_info", group="tide", member="one", phase="leading") == 1
        assert found("server_group_epoch") == 1
        assert (found("server_group_members"), found("server_group_in_sync_members")) == (1, 1)
        assert found("server_group_has_leader") == 1
        assert found("server_group_member_in_sync", member="one") == 1
        assert 0 < found("server_group_lease_left_seconds") <= 5
        assert found("server_group_min_in_sync") == 1
        missing = {name for name in FAMILIES if name.startswith("server_group")} - exported(found)
        assert missing == {"server_group_member_lag_bytes", "server_group_member_lag_seconds"}  # of other members


# -- directives ------------------------------------------------------------------------------------------------------
def test_it_is_off_by_default() -> None:
    with start_in_thread() as running:
        assert running.server.metrics.ports == []
        with Raw(running.port) as c:
            assert c("CONFIG", "GET", "metrics-port") == [b"metrics-port", b"0"]


def test_config_set_opens_moves_and_closes_the_port(server: RunningServer) -> None:
    first, second = free_port(), free_port()
    with Raw(server.port) as c:
        assert c("CONFIG", "SET", "metrics-port", first) == b"OK"
        assert scrape(first)("streams") == 0
        assert c("CONFIG", "SET", "metrics-port", second) == b"OK"
        assert scrape(second)("streams") == 0
        with pytest.raises(urllib.error.URLError):
            scrape(first)
        assert c("CONFIG", "SET", "metrics-bind", "127.0.0.1") == b"OK"
        assert scrape(second)("streams") == 0
        assert c("CONFIG", "SET", "metrics-port", 0) == b"OK"
        with pytest.raises(urllib.error.URLError):
            scrape(second)


def test_a_port_in_use_is_an_error_and_the_old_one_stays(server: RunningServer) -> None:
    port = free_port()
    with Raw(server.port) as c, socket.socket() as other:
        c("CONFIG", "SET", "metrics-port", port)
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert c("CONFIG", "SET", "metrics-port", taken) == (
            "ERR CONFIG SET failed (possibly related to argument 'metrics-port') - Could not serve metrics on 127.0.0.1"
            f" port {taken}: Address already in use: set metrics-port to a free port"
        )
        assert scrape(port)("streams") == 0
        assert c("CONFIG", "GET", "metrics-port") == [b"metrics-port", str(port).encode()]
        with pytest.raises(ConfigError, match=f"port {taken}: Address already in use: set metrics-port to a free"):
            start_in_thread(metrics_port=str(taken)).__enter__()


ADDRESS = "192.0.2.1"  # of no machine (RFC 5737)


FAR: dict[str, str] = {"metrics_port": "7000", "protected_mode": "no"}
PROTECTED = (
    "metrics-bind 0.0.0.0 is not a loopback address, and protected mode refuses other machines as long as no password "
    "is set: set metrics-bind to a loopback address, set a password with requirepass, or set protected-mode no"
)
NO_EFFECT = (
    "metrics-key-pattern has no effect while metrics-keys is 0: set metrics-keys to the maximum number of streams, or "
    "remove the pattern"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metrics_port": "70000"}, "argument must be between 0 and 65535 inclusive"),
        ({"metrics_port": "x"}, "argument couldn't be parsed into an integer"),
        ({"metrics_port": "7000", "port": "7000"}, "metrics-port and port are both 7000: set metrics-port to another"),
        ({"metrics_port": "1", "metrics_bind": "0.0.0.0"}, PROTECTED),
        ({"metrics_port": "1", "metrics_bind": ""}, "metrics-bind is empty: set an address, or set metrics-port 0"),
        (
            {**FAR, "metrics_bind": ADDRESS},
            f"on {ADDRESS} port 7000: .*: set metrics-bind to an address of this machine",
        ),
        ({**FAR, "metrics_bind": f"-{ADDRESS}"}, "metrics-bind: this machine has none of the addresses: set one"),
        ({**FAR, "metrics_bind": "no.such.host.invalid"}, "on no.such.host.invalid port 7000: .*: check metrics-bind"),
        ({"metrics_bind": "a b,c"}, "Invalid host name or address"),
        ({"metrics_keys": "-1"}, "argument must be between 0 and 10000 inclusive"),
        ({"metrics_keys": "0", "metrics_key_pattern": "a*"}, NO_EFFECT),
        ({"metrics_key_pattern": "a[b"}, "the pattern has a '\\[' without '\\]': add the '\\]', or write"),
        ({"metrics_key_pattern": "a\\"}, "the pattern ends with a backslash, which escapes nothing: write"),
        ({"metrics_key_pattern": "a" * 5000}, "the pattern has 5000 bytes; at most 4096 are allowed"),
    ],
)
def test_invalid_values_and_combinations(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text), start_in_thread(**options):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("pattern", ["a[bc]*", "\\[x", "[^a]?", "a\\\\", "[\\]]", "*"])
def test_valid_patterns(exporting: Exporting, pattern: str) -> None:
    assert exporting.c("CONFIG", "SET", "metrics-key-pattern", pattern) == b"OK"
    assert scrape(exporting.port)("streams") == 0


def test_config_set_checks_combinations(server: RunningServer) -> None:
    port = free_port()
    with Raw(server.port) as c:
        assert "metrics-keys to the maximum" in c("CONFIG", "SET", "metrics-keys", 0, "metrics-key-pattern", "a*")
        refused = c("CONFIG", "SET", "metrics-port", port, "metrics-bind", "0.0.0.0")
        assert "metrics-bind 0.0.0.0 is not a loopback address" in refused
        assert c("CONFIG", "GET", "metrics-*") == [
            b"metrics-port", b"0", b"metrics-bind", b"127.0.0.1 -::1", b"metrics-keys", b"100",
            b"metrics-key-pattern", b"",
        ]  # fmt: skip


def _address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ADDRESS, 9))  # sends nothing
        return str(probe.getsockname()[0])


def test_protected_mode_refuses_other_machines() -> None:
    port, own = free_port(), _address()
    if own.startswith("127."):
        pytest.skip("this machine has the loopback interface only")
    with start_in_thread(metrics_port=str(port), metrics_bind="0.0.0.0", requirepass="x") as running:
        assert scrape(port, own)("streams") == 0
        with Raw(running.port) as c:
            c("AUTH", "x")
            c("CONFIG", "SET", "requirepass", "")
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(port, own)
        assert refused.value.code == 403
        assert b"Set a password with requirepass, or set protected-mode no." in refused.value.read()
        assert scrape(port)("streams") == 0


def test_the_port_and_the_thread_end_with_the_server() -> None:
    port = free_port()
    with start_in_thread(metrics_port=str(port)), socket.create_connection(("127.0.0.1", port), timeout=10) as idle:
        assert b"404 Not Found" in answer(port, b"GET / HTTP/1.1\r\n\r\n")
    assert idle.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
