"""The handlers of INFO, TIME, SAVE, SHUTDOWN, MONITOR, CONFIG, SLOWLOG, LATENCY, MEMORY and DEBUG."""

from __future__ import annotations

import pytest

from commands.session import Session
from respserver.observe.slowlog import Histogram
from storage.streams.stream import Stream
from tests.commands.fakeserver import NOW, FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def me(server: FakeServer) -> Session:
    return server.connect()


def test_info_passes_section_names_in_lower_case(server: FakeServer, me: Session) -> None:
    assert server.run(me, "INFO") == b"$12\r\ntext of INFO\r\n"
    assert server.run(me, "INFO", "Server", "STREAMS") == b"$12\r\ntext of INFO\r\n"
    me.proto = 3
    assert server.run(me, "INFO", "cpu") == b"=16\r\ntxt:text of INFO\r\n"
    infos = [call for call in server.calls if call[0] == "info"]
    assert infos == [("info", []), ("info", ["server", "streams"]), ("info", ["cpu"])]


def test_info_with_a_path_that_is_not_utf8(server: FakeServer, me: Session) -> None:
    server.stats.answer("info", "config_file:\udcff")
    assert server.run(me, "INFO") == b"$13\r\nconfig_file:\xff\r\n"


def test_time_and_role(server: FakeServer, me: Session) -> None:
    server.ms = NOW + 1
    assert server.run(me, "TIME") == b"*2\r\n$10\r\n1700000000\r\n$4\r\n1007\r\n"
    assert server.run(me, "ROLE") == b"*3\r\n$6\r\nmaster\r\n:42\r\n*0\r\n"


def test_dbsize_and_flush(server: FakeServer, me: Session) -> None:
    for words in (["FLUSHALL"], ["FLUSHDB", "async"], ["FLUSHALL", "SYNC"]):
        server.ks.set_string(b"a", b"1")
        server.ks.set_string(b"b", b"1")
        assert server.run(me, "DBSIZE") == b":2\r\n"
        assert server.run(me, *words) == b"+OK\r\n"
        assert server.run(me, "DBSIZE") == b":0\r\n"
    server.ks.set_string(b"a", b"1")
    assert server.run(me, "FLUSHALL", "LATER") == b"-ERR syntax error\r\n"
    assert server.run(me, "FLUSHALL", "SYNC", "SYNC") == b"-ERR syntax error\r\n"
    assert server.run(me, "DBSIZE") == b":1\r\n"


def test_saving(server: FakeServer, me: Session) -> None:
    assert server.wait(me, "SAVE").check() == b"+OK\r\n"
    assert server.run(me, "BGSAVE") == b"+Background saving started\r\n"
    assert server.run(me, "BGREWRITEAOF") == b"+Background append only file rewriting started\r\n"
    assert server.run(me, "LASTSAVE") == b":1700000000\r\n"
    assert server.calls == [("save", me.id), ("begin", me.id, False), ("begin", me.id, True), ("last",)]
    for outcome, text in ((None, None), ("ERR the checkpoint failed: why", b"-ERR the checkpoint failed: why\r\n")):
        server.checkpoints.answer("save", lambda outcome=outcome: outcome)
        assert server.wait(me, "SAVE").check() == text
        del server.calls[-1]
    server.checkpoints.answer("begin", False)
    assert server.run(me, "BGSAVE") == b"-ERR Background save already in progress\r\n"
    assert server.run(me, "BGSAVE", "SCHEDULE") == b"+Background saving scheduled\r\n"
    assert server.run(me, "BGREWRITEAOF") == b"+Background append only file rewriting scheduled\r\n"
    assert server.run(me, "BGSAVE", "NOW") == b"-ERR syntax error\r\n"
    assert server.calls[4:] == [
        ("begin", me.id, False), ("begin", me.id, False), ("schedule", False), ("begin", me.id, True),
        ("schedule", True),
    ]  # fmt: skip
    server.checkpoints.rewriting = True
    assert server.run(me, "BGREWRITEAOF").startswith(b"-ERR Background append only file rewriting already")
    assert server.run(me, "BGSAVE").startswith(b"-ERR Another child process is active (AOF?): can't BGSAVE right now.")


def test_no_checkpoint_begins_inside_a_transaction(server: FakeServer, me: Session) -> None:
    assert server.run(me, "BGSAVE", in_exec=True) == b"+Background saving scheduled\r\n"
    assert server.calls == [("schedule", False)]
    assert server.run(me, "BGREWRITEAOF", in_exec=True).endswith(b"rewriting scheduled\r\n")
    assert server.calls[1:] == [("schedule", True)]


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], (True, False)), (["nosave"], (False, False)), (["SAVE", "NOW", "FORCE"], (True, True))],
)
def test_shutdown(server: FakeServer, me: Session, words: list[str], asked: tuple[bool, ...]) -> None:
    assert server.run(me, "SHUTDOWN", *words) == b""
    assert server.calls == [("stop", *asked)]


@pytest.mark.parametrize("words", [["SAVE", "NOSAVE"], ["LATER"], ["ABORT", "NOW"]])
def test_shutdown_with_wrong_arguments(server: FakeServer, me: Session, words: list[str]) -> None:
    assert server.run(me, "SHUTDOWN", *words) == b"-ERR syntax error\r\n"
    assert server.run(me, "SHUTDOWN", "ABORT") == b"-ERR No shutdown in progress.\r\n"
    assert server.calls == []


def test_monitor(server: FakeServer, me: Session) -> None:
    assert server.run(me, "MONITOR", in_exec=True).startswith(b"-ERR MONITOR isn't allowed")
    assert not me.monitoring
    assert server.run(me, "MONITOR") == b"+OK\r\n"
    assert me.monitoring


def test_config(server: FakeServer, me: Session) -> None:
    assert server.run(me, "CONFIG", "GET", "maxclients") == b"*2\r\n$10\r\nmaxclients\r\n$5\r\n10000\r\n"
    me.proto = 3
    assert server.run(me, "CONFIG", "GET", "nothing") == b"%0\r\n"
    assert server.run(me, "CONFIG", "SET", "maxclients", "5", "hz", "20") == b"+OK\r\n"
    assert (server.config.maxclients, server.config.hz) == (5, 20)
    assert server.run(me, "CONFIG", "SET", "hz", "1", "maxclients") == b"-ERR syntax error\r\n"
    assert server.config.hz == 20
    assert server.run(me, "CONFIG", "RESETSTAT") == b"+OK\r\n"
    assert server.run(me, "CONFIG", "REWRITE") == b"-ERR The server is running without a config file\r\n"
    assert server.calls == [("reset",)]


def test_config_with_bytes_that_are_not_utf8(server: FakeServer, me: Session) -> None:
    assert server.run(me, "CONFIG", "SET", "requirepass", b"\xff") == b"+OK\r\n"
    assert server.run(me, "CONFIG", "GET", "requirepass") == b"*2\r\n$11\r\nrequirepass\r\n$1\r\n\xff\r\n"
    assert server.run(me, "CONFIG", "SET", b"search-\xff", "x").startswith(b"-ERR Unknown option")
    assert server.run(me, "CONFIG", "SET", "search-x", b"\xff") == b"+OK\r\n"
    assert b"$8\r\nsearch-x\r\n$1\r\n\xff\r\n" in server.run(me, "CONFIG", "GET", "*")


def test_slowlog(server: FakeServer, me: Session) -> None:
    for number in range(12):
        server.timings.slowlog.note(1000 + number, 50, [b"GET", b"k%d" % number], "1.2.3.4:5", "app")
    assert server.run(me, "SLOWLOG", "LEN") == b":12\r\n"
    assert server.run(me, "SLOWLOG", "GET", "1") == (
        b"*1\r\n*6\r\n:11\r\n:1011\r\n:50\r\n*2\r\n$3\r\nGET\r\n$3\r\nk11\r\n$9\r\n1.2.3.4:5\r\n$3\r\napp\r\n"
    )
    assert server.run(me, "SLOWLOG", "GET").startswith(b"*10\r\n")
    assert server.run(me, "SLOWLOG", "GET", "-1").startswith(b"*12\r\n")
    assert server.run(me, "SLOWLOG", "GET", "0") == b"*0\r\n"
    for wrong in ("-2", "x"):
        text = b"-ERR count should be greater than or equal to -1\r\n"
        assert server.run(me, "SLOWLOG", "GET", wrong) == text
    assert server.run(me, "SLOWLOG", "RESET") == b"+OK\r\n"
    assert server.run(me, "SLOWLOG", "GET") == b"*0\r\n"


def test_latency_events(server: FakeServer, me: Session) -> None:
    assert b"monitoring is off" in server.run(me, "LATENCY", "DOCTOR")
    server.config.latency_monitor_threshold = 1
    assert b"No latency spike" in server.run(me, "LATENCY", "DOCTOR")
    for second, ms in ((10, 7), (11, 30), (12, 5)):
        server.timings.latency.note("command", second, ms)
    server.timings.latency.note("aof-write", 9, 3)
    assert server.run(me, "LATENCY", "LATEST") == (
        b"*2\r\n*4\r\n$7\r\ncommand\r\n:12\r\n:5\r\n:30\r\n*4\r\n$9\r\naof-write\r\n:9\r\n:3\r\n:3\r\n"
    )
    history = b"*3\r\n*2\r\n:10\r\n:7\r\n*2\r\n:11\r\n:30\r\n*2\r\n:12\r\n:5\r\n"
    assert server.run(me, "LATENCY", "HISTORY", "command") == history
    assert server.run(me, "LATENCY", "HISTORY", "nothing") == b"*0\r\n"
    assert b"command: 3 latency spikes (average 14ms, worst 30ms)" in server.run(me, "LATENCY", "DOCTOR")
    assert server.run(me, "LATENCY", "RESET", "command", "nothing") == b":1\r\n"
    assert server.run(me, "LATENCY", "RESET") == b":1\r\n"
    assert server.run(me, "LATENCY", "LATEST") == b"*0\r\n"


def test_latency_histogram(server: FakeServer, me: Session) -> None:
    for name, times in (("get", [1, 3, 3]), ("client|id", [9]), ("set", [])):
        histogram = server.timings.histograms[name] = Histogram()
        for usec in times:
            histogram.note(usec)
    get = b"$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:3\r\n$14\r\nhistogram_usec\r\n*4\r\n:1\r\n:1\r\n:4\r\n:3\r\n"
    client = b"$9\r\nclient|id\r\n*4\r\n$5\r\ncalls\r\n:1\r\n$14\r\nhistogram_usec\r\n*2\r\n:16\r\n:1\r\n"
    assert server.run(me, "LATENCY", "HISTOGRAM") == b"*4\r\n" + client + get
    assert server.run(me, "LATENCY", "HISTOGRAM", "GET", "no-such") == b"*2\r\n" + get
    assert server.run(me, "LATENCY", "HISTOGRAM", "client") == b"*2\r\n" + client


def test_memory_usage_grows_with_the_value(server: FakeServer, me: Session) -> None:
    assert server.run(me, "MEMORY", "USAGE", "k") == b"$-1\r\n"
    server.ks.set_string(b"k", b"x" * 10)
    small = int(server.run(me, "MEMORY", "USAGE", "k")[1:])
    server.ks.set_string(b"k", b"x" * 1010)
    assert int(server.run(me, "MEMORY", "USAGE", "k", "SAMPLES", "0")[1:]) == small + 1000
    stream = server.ks.create_stream(b"s")
    assert isinstance(stream, Stream)
    empty = int(server.run(me, "MEMORY", "USAGE", "s")[1:])
    for seq in range(100):
        server.ks.append(b"s", stream, NOW, seq, b"*1\r\n$15\r\n1700000000000.0\r\n")
    assert int(server.run(me, "MEMORY", "USAGE", "s")[1:]) > empty + 2000
    assert server.run(me, "MEMORY", "USAGE", "k", "SAMPLES") == b"-ERR syntax error\r\n"
    assert server.run(me, "MEMORY", "USAGE", "k", "SAMPLES", "-1") == b"-ERR syntax error\r\n"


def test_memory_stats(server: FakeServer, me: Session) -> None:
    me.proto = 3
    stats = server.run(me, "MEMORY", "STATS")
    for piece in (
        b"$15\r\ntotal.allocated\r\n:1000\r\n",
        b"$10\r\nkeys.count\r\n:5\r\n",
        b"$18\r\nkeys.bytes-per-key\r\n:100\r\n",
        b"$18\r\ndataset.percentage\r\n,50",
        b"$13\r\nfragmentation\r\n,2",
    ):
        assert piece in stats
    assert b"500 by 5 keys" in server.run(me, "MEMORY", "DOCTOR")
    assert server.run(me, "MEMORY", "PURGE") == b"+OK\r\n"


@pytest.mark.parametrize("words", [["SLEEP", "0"], ["RELOAD"], ["LOADAOF"], ["DIGEST"], ["HELP"]])
def test_debug_is_off(server: FakeServer, me: Session, words: list[str]) -> None:
    assert server.run(me, "DEBUG", *words).startswith(b"-ERR DEBUG command not allowed.")
    assert server.calls == []
    server.config.enable_debug_command = "local"
    assert not server.run(me, "DEBUG", *words).startswith(b"-")
    me.addr = "10.1.2.3:5"
    assert server.run(me, "DEBUG", *words).startswith(b"-ERR DEBUG command not allowed.")
    me.unix = True
    assert not server.run(me, "DEBUG", *words).startswith(b"-")
    me.unix = False
    server.config.enable_debug_command = "yes"
    assert not server.run(me, "DEBUG", *words).startswith(b"-")


def test_debug_subcommands(server: FakeServer, me: Session) -> None:
    server.config.enable_debug_command = "yes"
    for words in (["SLEEP", "0.25"], ["RELOAD"], ["RELOAD", "nosave"], ["LOADAOF"]):
        assert server.run(me, "DEBUG", *words) == b"+OK\r\n"
    assert server.calls == [("sleep", 0.25), ("reload", True), ("reload", False), ("reload", False)]
    for wrong in ("x", "-1", "nan", "inf"):
        assert server.run(me, "DEBUG", "SLEEP", wrong) == b"-ERR timeout is not an integer or out of range\r\n"
    assert server.run(me, "DEBUG", "RELOAD", "MERGE") == b"-ERR syntax error\r\n"
    empty = server.run(me, "DEBUG", "DIGEST")
    server.ks.set_string(b"k", b"v")
    full = server.run(me, "DEBUG", "DIGEST")
    assert empty != full
    server.ks.flush()
    assert server.run(me, "DEBUG", "DIGEST") == empty
