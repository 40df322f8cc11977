"""Files and standard streams in processes that are killed, interrupted, paused."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.flows.connectors.files.tailing import rotated

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("bytes_process.py")
DEADLINE = 20.0  # s
_started: list[subprocess.Popen[bytes]] = []


def _start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    for process in _started:
        process.kill()
        process.wait(DEADLINE)
        for each in (process.stdin, process.stdout, process.stderr):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()
    _started.clear()


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    limit = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < limit, "in vain"
        assert process is None or process.poll() is None, "the process ended"
        time.sleep(0.005)


def _lines(out: Path) -> list[str]:
    files = [*rotated(out), out] if out.exists() else rotated(out)
    return "".join(each.read_text() for each in files).split("\n")


def test_nothing_is_lost_when_the_process_is_killed_again_and_again(tmp_path: Path) -> None:
    """A file that grows and is rotated, a process that is killed at any moment: every line arrives."""
    chance = random.Random(7)
    path, out = tmp_path / "in.log", tmp_path / "out.log"
    written = 0
    process = None
    for turn in range(6):
        process = _start("file", str(path), str(out), stderr=subprocess.PIPE)
        assert process.stderr is not None
        assert process.stderr.readline() == b"started\n"
        if not turn:
            path.write_text("line begin\n")
            _until(lambda: len(_lines(out)) > 1, process)
        before = len(_lines(out))
        for _ in range(chance.randrange(2, 6)):
            with path.open("a") as file:
                file.writelines(f"line {number:06}\n" for number in range(written, written + 700))
            written += 700
            if chance.random() < 0.5 or turn == 3:
                path.rename(tmp_path / f"in.log.{100 + turn}{chance.randrange(1000):03}")
        if turn < 5:
            _until(lambda: len(_lines(out)) > before + chance.randrange(1000), process)  # noqa: B023
            process.kill()
            process.wait(DEADLINE)
    assert process is not None
    path.touch()
    expected = {"line begin"} | {f"line {number:06}" for number in range(written)}
    _until(lambda: expected <= set(_lines(out)), process)
    process.terminate()
    assert process.wait(DEADLINE) == 0
    found = _lines(out)
    assert set(found) - expected <= {"", *(each for each in found if len(each) < 11)}  # a line that a kill cut off
    assert len(found) < 6 * written


def test_standard_streams_to_the_end() -> None:
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    process = _start("stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, _ = process.communicate(lines + b"last", DEADLINE)
    assert out == lines + b"last\n"
    assert process.returncode == 0


@pytest.mark.parametrize("given", ["file", "null"])
def test_standard_input_that_can_not_be_waited_for(given: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1\n2\n")
    path = tmp_path / "file" if given == "file" else Path("/dev/null")
    with path.open("rb") as stdin, (tmp_path / "out").open("wb") as out:
        process = _start("stdio", stdin=stdin, stdout=out, stderr=subprocess.DEVNULL)
        assert process.wait(DEADLINE) == 0
    assert (tmp_path / "out").read_bytes() == (b"1\n2\n" if given == "file" else b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_loses_nothing_that_was_read(number: int) -> None:
    process = _start("stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == b"started\n"
    process.stdin.write(b"".join(b"%d\n" % each for each in range(3000)))
    process.stdin.flush()
    assert process.stdout.readline() == b"0\n"
    process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait(DEADLINE) == 0
    found = rest.split()
    assert found == [b"%d" % each for each in range(1, 1 + len(found))]


def test_a_paused_flow_reads_nothing_from_standard_input() -> None:
    """What nobody took is there for the next reader of the pipe."""
    read, write = os.pipe()
    process = _start("paused", stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == b"started\n"
    os.write(write, b"one\ntwo\n")
    process.terminate()
    assert process.wait(DEADLINE) == 0
    assert process.stdout.read() == b""
    assert os.read(read, 100) == b"one\ntwo\n"
    again = _start("paused", stdin=read, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.write(write, b"three\n")
    os.close(write)
    assert again.stdout is not None
    _until(lambda: b"SigCgt" in Path(f"/proc/{again.pid}/status").read_bytes() and _catches(again.pid, signal.SIGUSR1))
    again.send_signal(signal.SIGUSR1)
    assert again.stdout.read() == b"three\n"
    assert again.wait(DEADLINE) == 0
    os.close(read)


def _catches(pid: int, number: int) -> bool:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_a_reader_that_is_slow_holds_up_the_flow_and_not_its_signals() -> None:
    process = _start("stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == b"started\n"
    os.set_blocking(process.stdin.fileno(), False)
    sent, stuck, limit = 0, 0, time.monotonic() + DEADLINE
    while stuck < 20 and time.monotonic() < limit:  # until all pipes and channels are full
        done = _some(process)
        sent, stuck = sent + done, 0 if done else stuck + 1
        time.sleep(0 if done else 0.02)
    process.send_signal(signal.SIGINT)  # handled while the output is blocked: it drains when somebody reads
    process.stdin.close()
    rest = process.stdout.read()
    assert process.wait(DEADLINE) == 0
    assert rest == (b"x" * 999 + b"\n") * (len(rest) // 1000)
    assert len(rest) > 64_000


def _some(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    try:
        return os.write(process.stdin.fileno(), b"x" * 999 + b"\n")
    except BlockingIOError:
        return 0


@pytest.mark.parametrize(
    ("what", "given", "code"), [("exit", b'{"exit":7}\n', 7), ("exit", b"1\n", 3), ("exit-flow", b"1\n", 0)]
)
def test_exit(what: str, given: bytes, code: int) -> None:
    process = _start(what, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.readline() == b"started\n"
    process.stdin.write(given)
    process.stdin.flush()  # and it stays open
    assert process.wait(DEADLINE) == code
