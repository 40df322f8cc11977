"""Checkpoints and reloads while clients are at work."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from respserver.testing import RunningServer, start_in_thread
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def test_a_shutdown_waits_for_a_running_checkpoint(tmp_path: Path) -> None:
    running, go_on = threading.Event(), threading.Event()
    with start_in_thread(tmp_path) as server, Raw(server.port) as c, Raw(server.port) as late:
        c("SET", "k", "v")
        store = server.server.data.disk.store
        write = store.write

        def slow(*args: Any) -> None:
            running.set()
            assert go_on.wait(10)
            write(*args)

        server.call(lambda: setattr(store, "write", slow))
        assert c("BGSAVE") == b"Background saving started"
        assert running.wait(10)
        server.stop()
        assert c("SET", "k", "v2") == b"OK"
        go_on.set()
        late.send("BGSAVE")
    with start_in_thread(tmp_path) as server, Raw(server.port) as c:
        assert c("GET", "k") == b"v2"


def test_others_are_served_while_a_client_saves(tmp_path: Path) -> None:
    running, go_on = threading.Event(), threading.Event()
    with start_in_thread(tmp_path) as server, Raw(server.port) as c, Raw(server.port) as other:
        c("SET", "k", "v")
        store = server.server.data.disk.store
        write = store.write
        failing = False

        def slow(*args: Any) -> None:
            running.set()
            assert go_on.wait(10)
            if failing:
                raise OSError("the disk is full")
            write(*args)

        server.call(lambda: setattr(store, "write", slow))
        c.send("SAVE")
        assert running.wait(10)
        assert other("SET", "k", "v2") == b"OK"
        assert other("SAVE") == "ERR Background save already in progress"
        assert other("CLIENT", "UNBLOCK", 1) == 0
        assert c.nothing_yet()
        go_on.set()
        assert c.read() == b"OK"
        failing = True
        assert c("SAVE") == "ERR the checkpoint failed: the disk is full"
        failing = False
        assert c("SAVE") == b"OK"


def test_a_reload_during_a_streamed_reply(hand: RunningServer, connect: Connect) -> None:
    c, slow = connect(), connect()
    for _ in range(8):
        c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[bytes(8000)] * 500)
    c("SAVE")
    slow.send("TRANGE", "s", "-", "+")
    slow.sock.recv(1, socket.MSG_PEEK)  # the reply has begun
    assert c("DEBUG", "RELOAD") == b"OK"
    with contextlib.suppress(EOFError, ConnectionError):
        assert len(slow.read()) == 4000
    assert c("TLEN", "s") == 4000
    assert c("DEBUG", "RELOAD") == b"OK"
