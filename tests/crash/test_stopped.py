"""A server that was stopped, as a virtual machine is paused: what had arrived by then counts, before anything ends."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import running_server

STOPPED = 1.5  # seconds
RETRY = 500  # ms


@pytest.mark.parametrize("how", ["SIGSTOP", "SLEEP"])
def test_acknowledgements_that_have_arrived_count(how: str) -> None:
    with (
        running_server(wal_size="1mb", enable_debug_command="yes") as server,
        Raw(server.port) as c, Raw(server.port) as reader, Raw(server.port) as sleeper,
    ):  # fmt: skip
        for number in range(3):
            c("TAPPEND", "jobs", "n", number)
        ids = [row[0] for row in c(
            "TREAD", "jobs", "0", 3, "GROUP", "w", 1000, "RETRY", RETRY, 0, "MAXDELIVERIES", 1, "DEADLETTER", "dead"
        )]  # fmt: skip
        assert c("TSTAGE", "st", 1000, "out", "FIELDS", 1, "f", "VALUES", "a") == 1
        reader.send("TREAD", "jobs", "0", 3, "BLOCK", 0, "GROUP", "w", 1000)
        if how == "SIGSTOP":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            sleeper.send("DEBUG", "SLEEP", str(STOPPED))
            time.sleep(0.1)
        c.send("TACK", "jobs", "w", *ids)
        c.send("TSTAGE", "st", 1000, "out", "FIELDS", 1, "f", "VALUES", "b")
        time.sleep(STOPPED)
        if how == "SIGSTOP":
            os.kill(server.pid, signal.SIGCONT)
        assert (c.read(), c.read()) == (3, 2)
        assert c("EXISTS", "dead") == 0
        assert reader.nothing_yet()
        assert c("TPENDING", "jobs", "w") == [0, None, None, None]


def test_each_clock_while_the_server_is_stopped() -> None:
    """The wall clock and the monotonic clock continue, served time does not. No deadline of the latter passes early."""
    with running_server(wal_size="1mb", timeout="1") as server, Raw(server.port) as c, Raw(server.port) as reader:
        with Raw(server.port) as silent, Raw(server.port) as due:
            c("TAPPEND", "jobs", "n", 1)
            c("TREAD", "jobs", "0", 1, "GROUP", "w", 0, "RETRY", 1000, 0)
            c("TREAD", "jobs", "0", 1, "GROUP", "ttl", 1000)
            c("SET", "key", "v", "PX", 1000)
            silent("PING")
            reader.send("XREAD", "BLOCK", 1000, "STREAMS", "empty", "$")
            due.send("TREAD", "jobs", "", 1, "BLOCK", 0, "GROUP", "w", 0)
            c("CLIENT", "PAUSE", 1000, "WRITE")
            os.kill(server.pid, signal.SIGSTOP)
            c.send("SET", "other", "v")
            time.sleep(STOPPED)
            os.kill(server.pid, signal.SIGCONT)
            resumed = time.monotonic()
            assert c.read() == b"OK", "the pause has ended"
            assert (c("EXISTS", "key"), reader.read()) == (0, None)
            assert c("TPENDING", "jobs", "ttl")[0] == 0
            with pytest.raises((EOFError, ConnectionError)):
                silent.read()
            assert due.read()[0][1:] == [b"n", b"1"]
            assert time.monotonic() - resumed > 0.8, "a message fell due early"
        with Raw(server.port) as c:
            eventually(lambda: str(c("TPENDING", "jobs", "ttl")).startswith("NOGROUP"), seconds=10)
