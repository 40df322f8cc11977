"""``tidelog group`` with servers that only answer TMEMBER."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli.program import main


class Member:
    """Answers TMEMBER with a status, and everything else with OK; records what it was asked."""

    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status
        self.asked: list[list[str]] = []
        member = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        size = int(self.rfile.readline()[1:])
                        words.append(self.rfile.read(size + 2)[:-2].decode())
                    member.asked.append(words)
                    self.wfile.write(member.answer(words))

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, words: list[str]) -> bytes:
        if words[:2] == ["TMEMBER", "STATUS"]:
            text = json.dumps(self.status).encode()
            return b"$%d\r\n%b\r\n" % (len(text), text)
        if words[:2] == ["TMEMBER", "REMOVE"] and words[2] == "m1":
            return b"-ERR m1 is running: stop it first\r\n"
        return b"+OK\r\n"


def status(phase: str, leader_address: str) -> dict[str, Any]:
    return {
        "group": "tide", "member": "m1", "address": "127.0.0.1:1", "phase": phase, "problem": "", "epoch": 7,
        "leader": "m1" if leader_address else "", "leader_address": leader_address, "in_sync": ["m1", "m2"],
        "min_in_sync": 2, "replica_acks": "insync", "lease_ms": 5000, "lease_left_ms": 4000, "warnings": ["a warning"],
        "members": [
            {"name": "m1", "address": "127.0.0.1:1", "in_sync": True, "state": "leading", "version": "0.1.0"},
            {"name": "m2", "address": "127.0.0.1:2", "in_sync": False, "state": "following", "version": "0.1.0",
             "lag_bytes": 2048, "lag_seconds": 1.5},
        ],
        "events": [{"time": 1_700_000_000_000, "epoch": 7, "what": "m1 leads", "why": "m2 handed over"}],
    }  # fmt: skip


@pytest.fixture
def leader() -> Iterator[Member]:
    member = Member(status("leading", ""))
    member.status["leader_address"] = f"127.0.0.1:{member.port}"
    member.status["leader"] = "m1"
    yield member
    member.server.shutdown()
    member.server.server_close()


@pytest.fixture
def follower(leader: Member) -> Iterator[Member]:
    member = Member(status("following", f"127.0.0.1:{leader.port}"))
    yield member
    member.server.shutdown()
    member.server.server_close()


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["group", *words])
    assert done.exit_code == code, done.output
    return done.output


def url(*members: Member) -> str:
    return ",".join(f"redis://127.0.0.1:{member.port}" for member in members)


def test_status_of_the_leader(leader: Member, follower: Member) -> None:
    text = run("status", "--url", url(follower))
    assert "group tide: epoch 7, leader: m1" in text
    assert "in sync: 2 of 2 members, at least 2 for writes; replica-acks insync; lease 5.0 s, valid for 4.0 s" in text
    assert "warning: a warning" in text
    assert "m2      127.0.0.1:2  following  NO       2.0 KiB  1.5 s  0.1.0" in text
    assert "epoch 7  m1 leads: m2 handed over" in text
    assert leader.asked[-1] == ["TMEMBER", "STATUS"]


def test_json(leader: Member) -> None:
    assert json.loads(run("status", "--json", "--url", url(leader)))["epoch"] == 7


def test_a_leader_that_does_not_answer(leader: Member, follower: Member) -> None:
    follower.status["leader_address"] = "127.0.0.1:1"
    text = run("status", "--url", url(follower))
    assert "warning: the leader 127.0.0.1:1 does not answer" in text
    assert "has no reachable leader" in run("failover", "--url", url(follower), code=1)


def test_failover_goes_to_the_leader(leader: Member, follower: Member) -> None:
    assert "failover to m2 started" in run("failover", "m2", "--timeout", "500", "--url", url(follower))
    assert leader.asked[-1] == ["TMEMBER", "FAILOVER", "TO", "m2", "TIMEOUT", "500"]
    assert "failover to the most up-to-date member started" in run("failover", "--url", url(follower))


def test_removal(leader: Member) -> None:
    assert "m3 was removed from the group" in run("remove", "m3", "--url", url(leader))
    assert "m1 is running: stop it first" in run("remove", "m1", "--url", url(leader), code=1)


def test_no_member_answers() -> None:
    assert "no answer from" in run("status", "--url", "redis://127.0.0.1:1", code=1)
