"""Frames as they arrive on a socket: bounded memory, signs of life, and an end to both."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.replication.cluster import wait_until
from tidelog.backup import source
from tidelog.backup.frames import PIECE, BackupFrame
from tidelog.backup.source import PING, PSYNC, Frames
from tidelog.backup.targets import BackupError

ANSWER = b"+FULLRESYNC " + b"a" * 40 + b" 4711\r\n"


class Leader:
    """The other end of the socket."""

    def __init__(self) -> None:
        self.sock, self.theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.frames = Frames(self.theirs)
        self.pings = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def begins(self, answer: bytes = ANSWER) -> tuple[str, int]:
        self.sock.sendall(answer)
        begun = self.frames.begin()
        assert self.sock.recv(len(PSYNC)) == PSYNC
        self._thread.start()
        return begun

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.sock.recv(1 << 16):
                self.pings += data.count(PING)

    def close(self) -> None:
        self.frames.close()
        self.theirs.close()
        self.sock.close()


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    monkeypatch.setattr(source, "PING_SECONDS", 0.02)
    made = Leader()
    yield made
    made.close()


def test_the_answer_and_frames_right_behind_it(leader: Leader) -> None:
    frame = BackupFrame(PIECE, 4711, b"payload")
    assert leader.begins(b"\n\r\n" + ANSWER + frame.encoded()) == ("a" * 40, 4711)
    assert leader.frames.take() == frame


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"-NOPERM no\r\n", "the server replied: NOPERM no"),
        (b"+CONTINUE " + b"a" * 40 + b"\r\n", "the server replied: "),
        (b"+FULLRESYNC x y\r\n", "the server replied: "),
        (b"x" * 300_000, "has no end"),
    ],
)
def test_other_answers(leader: Leader, answer: bytes, says: str) -> None:
    sender = threading.Thread(target=leader.sock.sendall, args=(answer,))
    sender.start()
    with pytest.raises(BackupError, match=says):
        leader.frames.begin()
    sender.join()


def test_signs_of_life_until_the_caller_stands_still(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STALLED", 0.2)
    leader.begins(ANSWER + BackupFrame(PIECE, 4711, b"").encoded())
    waiting = threading.Thread(target=lambda: [leader.frames.take(), leader.frames.take()])
    waiting.start()
    wait_until(lambda: leader.pings > 20, "signs of life, however long it waits")
    leader.sock.sendall(BackupFrame(PIECE, 4711, b"").encoded())
    waiting.join()

    def silent() -> bool:
        before = leader.pings
        time.sleep(0.2)
        return leader.pings == before

    wait_until(silent, "it stops, since nothing is taken")
    leader.sock.sendall(BackupFrame(PIECE, 4711, b"").encoded())
    before = leader.pings
    leader.frames.take()
    wait_until(lambda: leader.pings > before, "it goes on")


def test_no_more_is_read_than_may_wait(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "QUEUED", 1_000_000)
    leader.begins()
    raw = BackupFrame(PIECE, 4711, bytes(100_000)).encoded()
    sent = 0
    leader.sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while sent < 200:
            leader.sock.sendall(raw)
            sent += 1
    assert 10 <= sent < 100
    assert leader.frames._bytes < 1_500_000
    assert [len(leader.frames.take().payload) for _ in range(sent)] == [100_000] * sent


def test_the_end_of_the_connection(leader: Leader) -> None:
    leader.begins(ANSWER + BackupFrame(PIECE, 4711, b"last").encoded())
    leader.sock.shutdown(socket.SHUT_RDWR)
    assert leader.frames.take().payload == b"last"
    for _ in range(2):
        with pytest.raises(BackupError, match="the server closed the connection"):
            leader.frames.take()


def test_silence(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SILENT", 0.1)
    leader.begins()
    with pytest.raises(BackupError, match="nothing was heard of the server"):
        leader.frames.take()


def test_signs_of_life_while_the_caller_makes_progress(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back a large base backup takes longer than STALLED. The log after it must be retained meanwhile."""
    monkeypatch.setattr(source, "STALLED", 0.1)
    leader.begins(ANSWER + BackupFrame(PIECE, 4711, b"").encoded())
    leader.frames.take()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        leader.frames.working()
        time.sleep(0.01)
    before = leader.pings
    leader.frames.working()
    wait_until(lambda: leader.pings > before, "it goes on")
