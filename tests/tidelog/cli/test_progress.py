"""Progress: long commands show it on a terminal, and nothing of it reaches a pipe or a file."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tidelog.cli.test_dlq import bury
from tidelog.cli import progress
from tidelog.cli.program import main
from tidelog.cli.progress import Progress
from tidelog.testing import Server
from tidelog.topics import Topic


class Terminal(io.StringIO):
    """Standard error of a user at a terminal."""

    def isatty(self) -> bool:
        return True


def drain(terminal: int) -> str:
    """Everything that was written to a terminal that nobody writes to any more."""
    seen = b""
    try:
        while more := os.read(terminal, 1 << 16):
            seen += more
    except OSError:  # Linux: its other side is closed
        pass
    return seen.decode()


@pytest.mark.parametrize("output", ["file", "pipe"])
def test_a_real_terminal(tidelog_server: Server, tmp_path: Path, output: str) -> None:
    """tidelog dump shows a bar if its entries go to a file. With a pipe, another program may write to the terminal."""
    with tidelog_server.client() as client:
        client.tmappend("k", ["n"], [(n,) for n in range(2500)])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tidelog.cli", "dump", "k", "--url", tidelog_server.url]
    with (tmp_path / "dump").open("wb") as file:
        stdout = file if output == "file" else subprocess.PIPE
        with subprocess.Popen(command, stdout=stdout, stderr=theirs) as process:
            os.close(theirs)
            if process.stdout is not None:
                assert process.stdout.read().count(b"\n") == 2500
    shown = drain(ours)
    os.close(ours)
    assert process.returncode == 0
    if output == "file":
        assert (tmp_path / "dump").read_text().count("\n") == 2500
        assert " entries " in shown
        assert "%" in shown
    else:
        assert shown.replace("\r\x1b[K", "") == ""


def invoke(words: tuple[str, ...], url: str) -> str:
    """Run a command without a terminal; nothing of its progress may appear. Returns what it shows on a terminal."""
    shown = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "standard_error", lambda: shown)
        first = CliRunner().invoke(main, words, env={"TIDELOG_URL": url})
    second = CliRunner().invoke(main, words, env={"TIDELOG_URL": url})
    for result in (first, second):
        assert isinstance(result.exception, SystemExit) or result.exception is None
        assert "\r" not in result.output
    assert shown.getvalue().endswith("\r\x1b[K"), first.output
    return shown.getvalue()


def test_commands_on_a_terminal_and_without_one(tidelog_server: Server, tmp_path: Path) -> None:
    url, rows, target = tidelog_server.url, tmp_path / "rows.csv", str(tmp_path / "backups")
    rows.write_text("id\n" + "1\n" * 1000)
    with tidelog_server.client() as client:
        topic: Topic[dict[str, str]] = Topic("orders", dict, partition_by="id", partitions=1)
        topic.use(sync=client)
        topic.sync.ready()
        for number in range(3):
            bury(client, number)
        for what, *words in [
            (" rows ", "load", "k", str(rows)),
            ("verifying ", "backup", target),
            ("backups ", "backups", target),
            ("verifying ", "verify", target),
            ("restoring ", "restore", target, str(tmp_path / "restored")),
            ("checking ", "doctor"),
            ("topics ", "topics", "list"),
            ("topics ", "dlq", "list"),
            ("dead letters read: ", "dlq", "list", "orders"),
            ("dead letters ", "dlq", "replay", "orders", "--all"),
            ("searching ", "app", "delete", "shop", "--yes"),
        ]:
            assert what in invoke(tuple(words), url), words
        bury(client, 4)
        assert "dead letters " in invoke(("dlq", "purge", "orders", "--all", "--yes"), url)


def test_the_bar() -> None:
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "standard_error", lambda: terminal)
        with Progress() as shown:
            shown.show_entries("entries \x1b[2J\n", 50, 100)
    drawn, cleared = terminal.getvalue().split("\x1b[K")[:2]
    assert drawn.startswith("\r 50% ███████████████░░░░░░░░░░░░░░░  entries \\u001b[2J  50  ")
    assert cleared == "\r"
