"""A server that was stopped, as a virtual machine is paused: what had arrived by then counts, before anything ends."""

from __future__ import annotations

import os
import signal
import time

import pytest

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
