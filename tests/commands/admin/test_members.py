"""TMEMBER passes its arguments to the server group."""

from __future__ import annotations

import json

import pytest

from tests.commands.fakeserver import FakeServer, Recorder


@pytest.fixture
def server() -> FakeServer:
    made = FakeServer()
    made.group = Recorder(made.calls, status={"epoch": 7}, removal=lambda: None)
    return made


def test_without_a_group(server: FakeServer) -> None:
    server.group = None
    for words in (["STATUS"], ["FAILOVER"], ["REMOVE", "m1"]):
        assert b"not a member of a server group" in server.run(server.connect(), "TMEMBER", *words)


def test_status_is_json(server: FakeServer) -> None:
    head, text = server.run(server.connect(), "TMEMBER", "STATUS").split(b"\r\n")[:2]
    assert head == b"$%d" % len(text)
    assert json.loads(text) == {"epoch": 7}


def test_failover(server: FakeServer) -> None:
    assert server.run(server.connect(), "TMEMBER", "FAILOVER", "TO", "m2", "TIMEOUT", "500") == b"+OK\r\n"
    assert server.run(server.connect(), "TMEMBER", "FAILOVER") == b"+OK\r\n"
    assert server.calls == [("fail_over", "m2", 500), ("fail_over", "", 0)]
    for words in (["TO"], ["ABORT"], ["TIMEOUT", "-1"]):
        assert server.run(server.connect(), "TMEMBER", "FAILOVER", *words).startswith(b"-ERR")


def test_removal_waits_for_its_result(server: FakeServer) -> None:
    answers: list[str | None] = [None]
    server.group.answer("removal", lambda: answers[0])
    waiting = server.wait(server.connect(), "TMEMBER", "REMOVE", "m3")
    assert server.calls == [("removal", "m3")]
    assert waiting.check() is None
    answers[0] = "ERR m3 is running: stop it first"
    assert waiting.check() == b"-ERR m3 is running: stop it first\r\n"
    answers[0] = ""
    assert waiting.check() == b"+OK\r\n"
