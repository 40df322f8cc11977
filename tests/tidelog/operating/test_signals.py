"""Signals that a program takes: given back at the end, shared by its parts, unknown to its children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tidelog.operating.signals import ENDING, handling, unhandled

PATIENCE = 60
ROOT = Path(__file__).parents[3]

# A program that takes its signals, does something with a child, and says which signals it was told.
PROGRAM = """
import asyncio, multiprocessing, os, signal, subprocess, sys, time
import uvloop
from tidelog.operating.signals import ENDING, handling

told = []

def idle():
    time.sleep(600)

def pool():
    with multiprocessing.get_context(METHOD).Pool(2) as made:
        made.map(abs, range(4))

def terminated():
    child = multiprocessing.get_context(METHOD).Process(target=idle)
    child.start()
    child.terminate()
    child.join(30)
    return child.exitcode

def raw():
    pid = os.fork()
    if not pid:
        handlers = [signal.getsignal(number) for number in ENDING]
        clean = handlers == [signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL]
        unblocked = not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(ENDING)
        os._exit(0 if clean and unblocked and signal.set_wakeup_fd(-1) == -1 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def run():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.terminate()
    return child.wait(30)

async def main():
    with handling(ENDING, told.append):
        print(await asyncio.to_thread(WHAT))
        await asyncio.sleep(0.2)  # what a child has written into the loop would be seen by then
        os.kill(os.getpid(), signal.SIGTERM)
        while not told:
            await asyncio.sleep(0.01)
    print([number.name for number in told])

if __name__ == "__main__":
    if LOOP == "uvloop":
        uvloop.run(main())
    else:
        asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("what", "method", "result", "loop"),
    [
        ("pool", "fork", "None", "asyncio"),
        ("pool", "fork", "None", "uvloop"),
        ("terminated", "fork", f"{-signal.SIGTERM}", "uvloop"),
        ("terminated", "spawn", f"{-signal.SIGTERM}", "uvloop"),
        ("terminated", "forkserver", f"{-signal.SIGTERM}", "asyncio"),
        ("raw", "fork", "0", "asyncio"),
        ("raw", "fork", "0", "uvloop"),
        ("run", "fork", f"{-signal.SIGTERM}", "asyncio"),
    ],
)
def test_children_end_by_their_own_signals_and_the_parent_does_not_notice(
    tmp_path: Path, what: str, method: str, result: str, loop: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("METHOD", repr(method)).replace("WHAT", what).replace("LOOP", repr(loop)))
    ended = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [result, "['SIGTERM']"]


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - a signal handler tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_what_was_there_is_there_again(run: Callable[[Any], Any]) -> None:
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:

        async def main() -> None:
            assert not unhandled(ENDING)
            with handling(ENDING, lambda number: heard.append(number.name)):
                os.kill(os.getpid(), signal.SIGTERM)
                await _until(lambda: len(heard) == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await _until(lambda: len(heard) == 2)

        run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["SIGTERM", "before"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_several_parts_of_a_program_share_them(run: Callable[[Any], Any]) -> None:
    heard: list[str] = []

    async def main() -> None:
        assert unhandled(ENDING)
        with handling(ENDING, lambda number: heard.append(f"1 {number.name}")):
            assert unhandled(ENDING)  # they are this program's already
            with handling(ENDING, lambda number: heard.append(f"2 {number.name}")):
                os.kill(os.getpid(), signal.SIGINT)
                await _until(lambda: len(heard) == 2)
            os.kill(os.getpid(), signal.SIGINT)
            await _until(lambda: len(heard) == 3)

    run(main())
    assert heard == ["1 SIGINT", "2 SIGINT", "1 SIGINT"]


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    def other(*_: object) -> None: ...

    async def main() -> None:
        with handling(ENDING, lambda _: None):
            signal.signal(signal.SIGTERM, other)
        assert signal.getsignal(signal.SIGTERM) is other

    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_nohup_ignores_stays_ignored() -> None:
    async def main() -> None:
        assert unhandled(ENDING)
        with handling(ENDING, lambda _: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_shell_ignores_in_the_background_is_free() -> None:
    """``python program.py &`` in a script begins with SIGINT ignored. SIGTERM must drain it all the same."""

    async def main() -> None:
        assert unhandled(ENDING)
        with handling(ENDING, lambda _: None):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)


def test_not_in_another_thread() -> None:
    found: list[object] = []

    async def main() -> None:
        found.append(unhandled(ENDING))
        with pytest.raises(RuntimeError, match="main thread"), handling(ENDING, lambda _: None):
            pass

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert found == [False]
