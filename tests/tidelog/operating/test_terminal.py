"""Lines of a program that continues if its output can't be written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from tidelog.operating.terminal import try_echo

for number in range(3):
    try_echo(f"line {number} " + "x" * 10_000, err=sys.argv[1] == "err")
os.write(int(sys.argv[2]), b"continued")
"""


def run(stream: str, output: int) -> tuple[int, bytes]:
    """Run the program with a descriptor as its standard output or error. Return its status and the text at its end."""
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, stream, str(writing)], pass_fds=(writing,),
            stdout=output if stream == "out" else None, stderr=output if stream == "err" else None,
        )  # fmt: skip
        os.close(writing)
        return process.wait(60), pipe.read()


@pytest.mark.parametrize("stream", ["out", "err"])
def test_a_reader_that_has_ended(stream: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as output:
        assert run(stream, output.fileno()) == (0, b"continued")


@pytest.mark.parametrize("stream", ["out", "err"])
def test_a_full_disk(stream: str) -> None:
    with open("/dev/full", "wb") as output:
        assert run(stream, output.fileno()) == (0, b"continued")
